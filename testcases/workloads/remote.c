/* Threads on every node read and write one shared buffer that was populated from node 0.
 *
 * usage: remote MIB SECONDS
 * Prints how many passes over the buffer all threads made together.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char *buffer;
static size_t size;
static double until;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *touch(void *unused)
{
	long passes = 0;

	(void)unused;
	while (now() < until) {
		for (size_t i = 0; i < size; i += 4096)
			buffer[i]++;
		passes++;
	}
	return (void *)passes;
}

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), passes = 0;
	pthread_t *threads = calloc(cpus, sizeof(*threads));

	if (argc != 3 || !threads)
		return 2;
	size = strtoul(argv[1], NULL, 10) << 20;
	buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED)
		return 1;
	madvise(buffer, size, MADV_NOHUGEPAGE);	/* base pages, so that every counter counts the same unit */
	memset(buffer, 1, size);
	until = now() + strtod(argv[2], NULL);
	for (long i = 0; i < cpus; i++)
		if (pthread_create(&threads[i], NULL, touch, NULL))
			return 1;
	for (long i = 0; i < cpus; i++) {
		void *result;

		pthread_join(threads[i], &result);
		passes += (long)result;
	}
	printf("%ld passes\n", passes);
	return 0;
}
