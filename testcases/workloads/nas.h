/*
 * What the NAS kernels share: their random numbers, arrays, and how a result is verified and told. "The report" is The
 * NAS Parallel Benchmarks, RNR-94-007, March 1994; classes S, W, C, D and their values came with the later NPB 2 and 3.
 */
#ifndef NAS_H
#define NAS_H

#include "lab.h"
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>

/* The report's generator: x becomes 5^13 x mod 2^46, and x / 2^46 is the number. */
static const uint64_t FIVE_13 = 1220703125, MOD_46 = (1ull << 46) - 1;

static inline double draw(uint64_t *x)
{
	*x = *x * FIVE_13 & MOD_46;
	return *x * 0x1p-46;
}

/* The state after `count` numbers were drawn from x: every thread begins where its part of the sequence does. */
static inline uint64_t skip(uint64_t x, uint64_t count)
{
	for (uint64_t a = FIVE_13; count; count >>= 1, a = a * a & MOD_46)
		if (count & 1)
			x = x * a & MOD_46;
	return x;
}

static const char *nas_file;	/* arrays are in it, mapped MAP_SHARED; NULL: anonymous */
static bool nas_huge;		/* pages as the kernel likes; false: base pages */

/* Zeroed memory that nobody has touched yet: the threads that fill an array decide where it lies. */
static inline void *array(size_t count, size_t each)
{
	static off_t end;
	size_t size = (count * each + PAGE - 1) / PAGE * PAGE;
	void *place;
	int file;

	if (!nas_file) {
		place = memory(size);
	} else {
		file = open(nas_file, O_RDWR | O_CREAT | (end ? 0 : O_TRUNC), 0600);
		if (file < 0 || ftruncate(file, end + (off_t)size))
			die(nas_file);
		place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, end);
		if (place == MAP_FAILED)
			die("mmap");
		close(file);
		end += size;
	}
	if (!nas_huge)
		base_pages(place, size);
	return place;
}

/* The command line, the same for all: which class. Returns its index in "SWABCD". */
static inline int nas_class(int argc, char **argv)
{
	static const char classes[] = "SWABCD";
	const char *found = argc >= 3 && strlen(argv[1]) == 1 ? strchr(classes, argv[1][0]) : NULL;

	if (argc > 4 || !found)
		usage("S|W|A|B|C|D HUGE [FILE] (HUGE 1: pages as the kernel likes; FILE: arrays are in it, MAP_SHARED)");
	nas_huge = number(argv[2]);
	nas_file = argc == 4 ? argv[3] : NULL;
	return found - classes;
}

/* Whether a result is the published one; both are printed. NaN is not. */
static inline bool same(const char *what, double got, double want, double tolerance)
{
	bool good = fabs((got - want) / want) <= tolerance;

	printf("%s %.15e, published %.15e: %s\n", what, got, want, good ? "the same" : "NOT THE SAME");
	return good;
}

/* The end of a program: its exit status. */
static inline int verdict(bool good, double operations, double seconds)
{
	printf("Verification %s\n", good ? "SUCCESSFUL" : "FAILED");
	tell("mops_per_second", operations / seconds / 1e6);
	tell("timed_seconds", seconds);
	if (!good)
		fprintf(stderr, "%s: verification failed\n", program_invocation_short_name);
	return good ? 0 : 1;
}

#endif
