/*
 * EP, embarrassingly parallel: pairs of Gaussian deviates by the polar method, counted by the square annulus in which
 * they lie, and added up (the report, kernel EP). Blocks of pairs are handed to threads; nothing but sums is shared.
 */
#include "nas.h"

enum { BLOCK = 1 << 16, ANNULI = 10 };

static const struct {
	int log_pairs;
	double x, y;	/* the sums */
} classes[] = {
	{ 24, -3.247834652034740e+3, -6.958407078382297e+3 },
	{ 25, -2.863319731645753e+3, -6.320053679109499e+3 },
	{ 28, -4.295875165629892e+3, -1.580732573678431e+4 },
	{ 30, 4.033815542441498e+4, -2.660669192809235e+4 },
	{ 32, 4.764367927995374e+4, -8.084072988043731e+4 },
	{ 36, 1.982481200946593e+5, -1.020596636361769e+5 },
};

int main(int argc, char **argv)
{
	int class = nas_class(argc, argv);
	long blocks = 1l << (classes[class].log_pairs - 16), counts[ANNULI] = { 0 };
	double sum_x = 0, sum_y = 0, begin = now();
	bool good;

#pragma omp parallel for reduction(+ : sum_x, sum_y, counts)
	for (long block = 0; block < blocks; block++) {
		uint64_t state = skip(271828183, 2ull * BLOCK * block);

		for (int i = 0; i < BLOCK; i++) {
			double x = 2 * draw(&state) - 1, y = 2 * draw(&state) - 1, t = x * x + y * y;

			if (t > 1)
				continue;
			t = sqrt(-2 * log(t) / t);
			x *= t;
			y *= t;
			counts[(int)fmax(fabs(x), fabs(y))]++;
			sum_x += x;
			sum_y += y;
		}
	}
	begin = now() - begin;
	for (int i = 0; i < ANNULI; i++)
		printf("annulus %d: %ld\n", i, counts[i]);
	good = same("sum of x", sum_x, classes[class].x, 1e-8);
	good &= same("sum of y", sum_y, classes[class].y, 1e-8);
	return verdict(good, ldexp(2, classes[class].log_pairs), begin);
}
