/*
 * IS, integer sort: keys of a bell-shaped distribution are ranked ten times, two of them changed before each time (the
 * report, kernel IS). Ranked by buckets: threads put their share of the keys into buckets, then count bucket by bucket.
 */
#include "nas.h"

enum { ITERATIONS = 10, TESTS = 5, LOG_BUCKETS = 9, BUCKETS = 1 << LOG_BUCKETS };

static const struct {
	int log_keys, log_range;
	struct {
		uint32_t key;	/* which key's rank is looked at */
		long rank;	/* of its value before the first iteration; every iteration moves it by `step` */
		int step;
	} tests[TESTS];
} classes[] = {
	{ 16, 11, { { 48427, 0, 1 }, { 17148, 18, 1 }, { 23627, 346, 1 }, { 62548, 64917, -1 }, { 4431, 65463, -1 } } },
	{ 20, 16, { { 357773, 1247, 1 }, { 934767, 11696, 1 }, { 875723, 1039987, -1 }, { 898999, 1043896, -1 },
		    { 404505, 1048018, -1 } } },
	{ 23, 19, { { 2112377, 103, 1 }, { 662041, 17522, 1 }, { 5336171, 123927, 1 }, { 3642833, 8288933, -1 },
		    { 4250760, 8388265, -1 } } },
	{ 25, 21, { { 41869, 33422937, -1 }, { 812306, 10244, 1 }, { 5102857, 59149, 1 }, { 18232239, 33135281, -1 },
		    { 26860214, 99, 1 } } },
	{ 27, 23, { { 44172927, 61147, 1 }, { 72999161, 882988, 1 }, { 74326391, 266290, 1 }, { 129606274, 133997595, -1 },
		    { 21736814, 133525895, -1 } } },
	{ 31, 27, { { 1317351170, 1, 1 }, { 995930646, 36538729, 1 }, { 1157283250, 1978098519, -1 },
		    { 1503301535, 2145192618, -1 }, { 1453734525, 2147425337, -1 } } },
};

static uint32_t *keys, *bucketed, *upto;	/* upto[k]: how many keys are k or less */
static size_t count, range, starts[BUCKETS + 1];

static void make_keys(void)
{
#pragma omp parallel
	{
		size_t first = count * omp_get_thread_num() / omp_get_num_threads();
		size_t last = count * (omp_get_thread_num() + 1) / omp_get_num_threads();
		uint64_t state = skip(314159265, 4 * first);

		for (size_t i = first; i < last; i++) {
			double sum = draw(&state);

			sum += draw(&state);
			sum += draw(&state);
			sum += draw(&state);
			keys[i] = range / 4 * sum;
		}
	}
}

static void rank_keys(void)
{
	const int shift = __builtin_ctzl(range) - LOG_BUCKETS, threads = omp_get_max_threads();
	size_t (*at)[BUCKETS] = calloc(threads, sizeof(*at));

	if (!at)
		die("calloc");
#pragma omp parallel
	{
		size_t *mine = at[omp_get_thread_num()];

#pragma omp for schedule(static)
		for (size_t i = 0; i < count; i++)
			mine[keys[i] >> shift]++;
#pragma omp single
		for (size_t bucket = 0, sum = 0; bucket < BUCKETS; bucket++) {
			starts[bucket] = sum;
			for (int thread = 0; thread < threads; thread++) {
				size_t here = at[thread][bucket];

				at[thread][bucket] = sum;
				sum += here;
			}
		}
#pragma omp for schedule(static)	/* the same keys as above */
		for (size_t i = 0; i < count; i++)
			bucketed[mine[keys[i] >> shift]++] = keys[i];
#pragma omp for schedule(dynamic)
		for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
			size_t first = bucket << shift, last = (bucket + 1) << shift, sum = starts[bucket];

			memset(upto + first, 0, (last - first) * sizeof(*upto));
			for (size_t i = starts[bucket]; i < starts[bucket + 1]; i++)
				upto[bucketed[i]]++;
			for (size_t key = first; key < last; key++)
				sum = upto[key] += sum;
		}
	}
	free(at);
}

static bool ranks_are_right(int class, int iteration)
{
	bool good = true;

	for (int i = 0; i < TESTS; i++) {
		uint32_t value = keys[classes[class].tests[i].key];
		long got = value ? upto[value - 1] : 0, want = classes[class].tests[i].rank + classes[class].tests[i].step * iteration;

		if (got == want)
			continue;
		printf("iteration %d: the rank of key %u is %ld, published %ld\n", iteration, classes[class].tests[i].key, got, want);
		good = false;
	}
	return good;
}

/* Every key goes where its rank says; then none may be less than the one before it. */
static bool keys_are_sorted(void)
{
	long wrong = 0;

#pragma omp parallel for schedule(dynamic)
	for (size_t bucket = 0; bucket < BUCKETS; bucket++)
		for (size_t i = starts[bucket]; i < starts[bucket + 1]; i++)
			keys[--upto[bucketed[i]]] = bucketed[i];
#pragma omp parallel for reduction(+ : wrong)
	for (size_t i = 1; i < count; i++)
		wrong += keys[i - 1] > keys[i];
	printf("keys out of order: %ld\n", wrong);
	return !wrong;
}

int main(int argc, char **argv)
{
	int class = nas_class(argc, argv);
	bool good = true;
	double begin;

	count = 1ul << classes[class].log_keys;
	range = 1ul << classes[class].log_range;
	starts[BUCKETS] = count;
	keys = array(count, sizeof(*keys));
	bucketed = array(count, sizeof(*bucketed));
	upto = array(range, sizeof(*upto));
	make_keys();
	begin = now();
	for (int iteration = 1; iteration <= ITERATIONS; iteration++) {
		keys[iteration] = iteration;
		keys[iteration + ITERATIONS] = range - iteration;
		rank_keys();
		good &= ranks_are_right(class, iteration);
	}
	begin = now() - begin;
	good &= keys_are_sorted();
	return verdict(good, (double)ITERATIONS * count, begin);
}
