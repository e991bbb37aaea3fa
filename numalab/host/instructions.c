// SPDX-License-Identifier: GPL-2.0-only
/*
 * A TCG plugin of QEMU: counts the instructions that a guest on the virtual clock executes, by call path of the
 * kernel's functions. Nothing runs in the guest for it, and the guest's clock, which counts instructions, does
 * not see it.
 *
 * The guest says when to count by a no-operation that nothing else uses: NOPL with MARK + 1 (begin) or MARK + 2
 * (end) as displacement (measure.agent). At the beginning, the file `symbols` is read: lines `ADDRESS ROOT`, in
 * hexadecimal and ascending, of the kernel's functions; ROOT is 1 for the entry of an interrupt, whose work is
 * not that of what it interrupted. At the end, `profile` is written: lines `N;N;N COUNT`, the outermost function
 * first, where N is a function's line in `symbols` from 1 on, or 0 for an address before the first, and -1 the
 * program in user space; and last a line `total COUNT`.
 *
 * Call paths come from the stack itself: a call writes its return address there, and has ended once the stack pointer
 * is above it. A kernel stack is 16 KiB at a multiple of that (since 3.15), so the pointer tells which one it is, and
 * neither a task switch nor a patched return needs a special case. The number of the vCPU that QEMU passes to callbacks
 * is not used: without parallel vCPUs QEMU 10 passes that of the one for which the block was translated.
 *
 * A block of instructions that a fault ends is counted as a whole. With -icount one thread runs all vCPUs, so
 * nothing here is locked.
 *
 * The declarations are of QEMU's plugin API and of GLib, which QEMU has loaded: Debian packages no header of the former.
 * API is the version of the former: 3 (since QEMU 9.1), or 7 (QEMU 11.1, which takes no older one), where each callback
 * has data of its own and none the plugin's id.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
	const char *target_name;
	struct {
		int min;
		int cur;
	} version;
	bool system_emulation;
	struct {
		int smp_vcpus;
		int max_vcpus;
	} system;
} qemu_info_t;
enum { CB_NO_REGS, CB_R_REGS };
enum { MEM_W = 2 };
typedef void (*exec_cb)(unsigned int, void *);
typedef void (*mem_cb)(unsigned int, uint32_t, uint64_t, void *);
#if API < 7
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned int));
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
#else
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, void (*)(unsigned int, void *), void *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(struct qemu_plugin_tb *, void *), void *);
#endif
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, exec_cb, int, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, exec_cb, int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, mem_cb, int, int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);

/* Later versions of the API may have more in it. */
struct reg_descriptor {
	void *handle;
	const char *name;
	const char *feature;
};
typedef struct {
	char *data;
	unsigned int len;
} array;
array *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(void *, array *);
unsigned int g_array_get_element_size(array *);
array *g_array_free(array *, int);
array *g_byte_array_new(void);
array *g_byte_array_set_size(array *, unsigned int);
EXPORT int qemu_plugin_version = API;

#define MARK 0x6e6c6200u /* and 1 or 2; as in measure.agent */
#define KERNEL (1ull << 63)
#define STACK_SHIFT 14 /* THREAD_SIZE: a kernel stack begins at a multiple of it */
#define DEEPEST 128 /* frames of a stack; deeper calls count for the last one */

static void *grown(void *array, size_t *room, size_t size)
{
	*room = *room ? 2 * *room : 1024;
	array = realloc(array, *room * size);
	if (!array) {
		perror("instructions.c");
		abort();
	}
	return array;
}

/* Functions: their addresses, sorted, and which begin an interrupt. Number 0 is none of them, USER a program. */
enum { UNKNOWN = 0, USER = -1 };
static uint64_t *addresses;
static bool *roots;
static size_t functions;

static int32_t function_at(uint64_t address)
{
	size_t low = 0, high = functions;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (addresses[middle] <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The tree of call paths. Node 0 is its root. */
struct node {
	uint32_t parent;
	int32_t function;
	uint64_t count;
};
static struct node *nodes;
static size_t used, room;
static uint32_t *children; /* nodes, by parent and function; open addressing, 0 is free */
static size_t slots;

static uint64_t mixed(uint64_t value)
{
	value ^= value >> 33;
	value *= 0xff51afd7ed558ccdull;
	return value ^ value >> 29;
}

static uint32_t *slot(uint32_t parent, int32_t function)
{
	size_t at = mixed((uint64_t)parent << 32 | (uint32_t)function) & (slots - 1);

	while (children[at] && (nodes[children[at]].parent != parent || nodes[children[at]].function != function))
		at = (at + 1) & (slots - 1);
	return &children[at];
}

static uint32_t child(uint32_t parent, int32_t function)
{
	uint32_t *place;

	if (function > 0 && roots[function - 1])
		parent = 0;
	place = slot(parent, function);
	if (*place)
		return *place;
	if (used == room)
		nodes = grown(nodes, &room, sizeof(*nodes));
	nodes[used] = (struct node){ .parent = parent, .function = function };
	*place = used++;
	if (2 * used > slots) {
		free(children);
		slots *= 2;
		children = calloc(slots, sizeof(*children));
		if (!children)
			abort();
		for (uint32_t each = 1; each < used; each++)
			*slot(nodes[each].parent, nodes[each].function) = each;
		return used - 1;
	}
	return *place;
}

/* Entries by key, which is their first member; open addressing. */
struct table {
	uint64_t **entries;
	size_t slots, used;
};

static uint64_t **entry_slot(struct table *table, uint64_t key)
{
	size_t at = mixed(key) & (table->slots - 1);

	while (table->entries[at] && *table->entries[at] != key)
		at = (at + 1) & (table->slots - 1);
	return &table->entries[at];
}

/* The entry with this key; a new one of `size` bytes is 0 but for that. */
static void *entry_of(struct table *table, uint64_t key, size_t size)
{
	uint64_t **place;

	if (2 * table->used >= table->slots) {
		struct table old = *table;

		table->slots = old.slots ? 2 * old.slots : 1024;
		table->entries = calloc(table->slots, sizeof(*table->entries));
		if (!table->entries)
			abort();
		for (size_t at = 0; at < old.slots; at++)
			if (old.entries[at])
				*entry_slot(table, *old.entries[at]) = old.entries[at];
		free(old.entries);
	}
	place = entry_slot(table, key);
	if (!*place) {
		*place = calloc(1, size);
		if (!*place)
			abort();
		**place = key;
		table->used++;
	}
	return *place;
}

/* Code, by address and length: a block, or a call. It is translated again and again, and kept once. */
struct code {
	uint64_t key;
	uint64_t address;
	uint32_t length;
	uint32_t period; /* in which `function` is right */
	int32_t function;
	uint32_t above, node; /* the last node above it, and its own then */
};
static struct table codes;
static uint32_t period; /* how often counting has begun */
static bool counting;

static struct code *code_at(uint64_t address, uint32_t length)
{
	/* A block has 512 instructions at most, and an address's upper bits are alike. */
	struct code *code = entry_of(&codes, address << 10 | length, sizeof(*code));

	code->address = address;
	code->length = length;
	return code;
}

/* The node of this code, called from `above`. */
static uint32_t node_of(struct code *code, uint32_t above)
{
	if (code->period != period) {
		code->period = period;
		code->function = code->address & KERNEL ? function_at(code->address) : USER;
	} else if (code->above == above) {
		return code->node;
	}
	code->above = above;
	code->node = child(above, code->function);
	return code->node;
}

/* Kernel stacks: the calls on each that have not returned. */
struct stack {
	uint64_t key; /* address >> STACK_SHIFT */
	uint32_t period; /* in which the nodes are right */
	uint32_t base; /* what the outermost call was made from, where that is on another stack */
	unsigned int depth;
	struct {
		uint64_t address; /* of the return address */
		struct code *call;
		uint32_t node;
	} frames[DEEPEST];
};
static struct table stacks;
static struct stack *last; /* on which the last block was executed; NULL: a program's */
static uint32_t last_above; /* the node that it was called from */
static void *stack_pointer; /* the register */
static array *value;

static struct stack *stack_at(uint64_t address)
{
	uint64_t key = address >> STACK_SHIFT;

	return last && last->key == key ? last : entry_of(&stacks, key, sizeof(*last));
}

/* Whether it is one on which a CPU enters the kernel, before it goes to the task's (CPU_ENTRY_AREA, since 4.15). */
static bool is_entry(const struct stack *stack)
{
	return stack->key >> (40 - STACK_SHIFT) == 0xfffffe;
}

/* Forget the calls whose return addresses lie below an address. */
static void unwind(struct stack *stack, uint64_t address)
{
	while (stack->depth && stack->frames[stack->depth - 1].address < address)
		stack->depth--;
}

/* The node of the innermost call on a stack. */
static uint32_t top(struct stack *stack)
{
	uint32_t above;

	if (stack->period != period) {
		stack->period = period;
		stack->base = 0;
		above = 0;
		for (unsigned int depth = 0; depth < stack->depth; depth++)
			above = stack->frames[depth].node = node_of(stack->frames[depth].call, above);
	}
	return stack->depth ? stack->frames[stack->depth - 1].node : stack->base;
}

static void called(unsigned int cpu, uint32_t info, uint64_t address, void *data)
{
	struct stack *stack = stack_at(address);
	uint32_t above = 0;

	unwind(stack, address + 1);
	if (stack->depth == DEEPEST)
		return;
	if (counting) {
		above = top(stack);
		/* Where the block that calls began on another stack, an interrupt goes to its own. */
		if (!stack->depth)
			above = stack->base = last && stack != last && !is_entry(last) ? last_above : 0;
	}
	stack->frames[stack->depth].address = address;
	stack->frames[stack->depth].call = data;
	stack->frames[stack->depth++].node = counting ? node_of(data, above) : 0;
	if (!counting)
		stack->period = 0;
}

static uint64_t read_stack_pointer(void)
{
	uint64_t address = 0;

	g_byte_array_set_size(value, 0);
	qemu_plugin_read_register(stack_pointer, value);
	if (value->len == sizeof(address))
		memcpy(&address, value->data, sizeof(address));
	return address;
}

static void executed(unsigned int cpu, void *data)
{
	struct code *code = data;
	uint64_t address;
	uint32_t node;

	if (!counting)
		return;
	last = NULL;
	last_above = 0;
	if (code->address & KERNEL) {
		address = read_stack_pointer();
		if (address & KERNEL) { /* else at its very entry */
			last = stack_at(address);
			unwind(last, address);
			last_above = top(last);
		}
	}
	node = node_of(code, last_above); /* which may move `nodes` */
	nodes[node].count += code->length;
}

static void find_stack_pointer(void)
{
	array *all = qemu_plugin_get_registers();
	unsigned int size = g_array_get_element_size(all);

	for (unsigned int each = 0; each < all->len; each++) {
		struct reg_descriptor *one = (void *)(all->data + (size_t)each * size);

		if (!strcmp(one->name, "rsp"))
			stack_pointer = one->handle;
	}
	g_array_free(all, 1);
}

static const char *symbols, *profile;

static void begin(unsigned int cpu, void *data)
{
	FILE *file = fopen(symbols, "r");
	uint64_t address;
	unsigned int root;
	size_t size = 0;

	functions = 0;
	counting = false;
	if (!file || !stack_pointer) {
		perror(file ? "instructions.c: no register rsp" : symbols);
		return;
	}
	while (fscanf(file, "%" SCNx64 " %u", &address, &root) == 2) {
		if (functions == size) {
			size_t same = size;

			addresses = grown(addresses, &size, sizeof(*addresses));
			roots = grown(roots, &same, sizeof(*roots));
		}
		addresses[functions] = address;
		roots[functions++] = root;
	}
	fclose(file);
	free(children);
	slots = 1 << 12;
	children = calloc(slots, sizeof(*children));
	if (!children)
		abort();
	if (!room)
		nodes = grown(nodes, &room, sizeof(*nodes));
	nodes[0] = (struct node){ 0 };
	used = 1;
	period++;
	counting = true;
}

static void path(FILE *file, uint32_t node)
{
	if (nodes[node].parent) {
		path(file, nodes[node].parent);
		fputc(';', file);
	}
	fprintf(file, "%" PRId32, nodes[node].function);
}

static void end(unsigned int cpu, void *data)
{
	FILE *file;
	uint64_t total = 0;

	if (!counting)
		return;
	counting = false;
	file = fopen(profile, "w");
	if (!file) {
		perror(profile);
		return;
	}
	for (uint32_t node = 1; node < used; node++) {
		if (!nodes[node].count)
			continue;
		total += nodes[node].count;
		path(file, node);
		fprintf(file, " %" PRIu64 "\n", nodes[node].count);
	}
	fprintf(file, "total %" PRIu64 "\n", total);
	fclose(file);
}

/* Whether this is a near call. Prefixes are those that the kernel uses. */
static bool is_call(const uint8_t *bytes, size_t size)
{
	while (size > 1 && (*bytes == 0x2e || *bytes == 0x3e || *bytes == 0x66 || (*bytes & 0xf0) == 0x40))
		bytes++, size--;
	return *bytes == 0xe8 || (*bytes == 0xff && size > 1 && (bytes[1] & 0x38) == 0x10);
}

static void instrument(struct qemu_plugin_tb *tb)
{
	size_t length = qemu_plugin_tb_n_insns(tb);
	uint64_t start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));

	/* All programs are one. */
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, start & KERNEL ? CB_R_REGS : CB_NO_REGS,
					     code_at(start & KERNEL ? start : 0, length));
	for (size_t each = 0; each < length; each++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, each);
		uint8_t bytes[16];
		size_t size = qemu_plugin_insn_data(insn, bytes, sizeof(bytes));
		uint64_t address = qemu_plugin_insn_vaddr(insn);
		uint32_t word;

		if (!(start & KERNEL)) {
			if (size != 8 || memcmp(bytes, "\x0f\x1f\x84\0", 4))
				continue;
			memcpy(&word, bytes + 4, sizeof(word));
			if (word == MARK + 1)
				qemu_plugin_register_vcpu_insn_exec_cb(insn, begin, CB_NO_REGS, NULL);
			if (word == MARK + 2)
				qemu_plugin_register_vcpu_insn_exec_cb(insn, end, CB_NO_REGS, NULL);
		} else if (is_call(bytes, size)) {
			qemu_plugin_register_vcpu_mem_cb(insn, called, CB_NO_REGS, MEM_W, code_at(address, 1));
		}
	}
}

#if API < 7
static void cpu_begins(qemu_plugin_id_t id, unsigned int cpu)
{
	find_stack_pointer();
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	instrument(tb);
}
#else
static void cpu_begins(unsigned int cpu, void *data)
{
	find_stack_pointer();
}

static void translated(struct qemu_plugin_tb *tb, void *data)
{
	instrument(tb);
}
#endif

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	for (int each = 0; each < argc; each++) {
		if (!strncmp(argv[each], "symbols=", 8))
			symbols = strdup(argv[each] + 8);
		if (!strncmp(argv[each], "profile=", 8))
			profile = strdup(argv[each] + 8);
	}
	if (!info->system_emulation || strcmp(info->target_name, "x86_64") || !symbols || !profile) {
		fprintf(stderr, "instructions.c: is for a whole machine, x86_64; symbols=FILE,profile=FILE\n");
		return 1;
	}
	value = g_byte_array_new();
#if API < 7
	qemu_plugin_register_vcpu_init_cb(id, cpu_begins);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
#else
	qemu_plugin_register_vcpu_init_cb(id, cpu_begins, NULL);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
#endif
	return 0;
}
