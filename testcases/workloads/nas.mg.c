/*
 * MG, multigrid: V-cycles towards the solution of the Poisson equation on a cubic periodic grid, with +1 at ten points
 * and -1 at ten others on the right hand side (the report, kernel MG).
 *
 * Every level is a cube of n points an edge in a frame one point wide, which holds what is at the opposite side.
 */
#include "nas.h"

enum { LEVELS = 10, CHARGES = 10 };

static const struct {
	int log_edge, iterations;
	double norm;
} classes[] = {
	{ 5, 4, 0.5307707005734e-04 },	{ 7, 4, 0.6467329375339e-05 },	{ 8, 4, 0.2433365309069e-05 },
	{ 8, 20, 0.1800564401355e-05 }, { 9, 20, 0.5706732285740e-06 }, { 10, 50, 0.1583275060440e-09 },
};

/* Weights of a point, of those that share a face with it, an edge, a corner. */
static const double RESIDUAL[4] = { -8.0 / 3, 0, 1.0 / 6, 1.0 / 12 };
static const double SMALL_SMOOTHER[4] = { -3.0 / 8, 1.0 / 32, -1.0 / 64, 0 };	/* S, W, A */
static const double LARGE_SMOOTHER[4] = { -3.0 / 17, 1.0 / 33, -1.0 / 61, 0 };	/* B and above */
static const double RESTRICTION[4] = { 1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16 };

static double *u[LEVELS + 1], *r[LEVELS + 1], *v;

static size_t at(int n, int k, int j, int i)
{
	return ((size_t)k * (n + 2) + j) * (n + 2) + i;
}

/* Copy each side into the frame beyond the opposite side, edges and corners with it. */
static void wrap(double *grid, int n)
{
#pragma omp parallel for schedule(static)
	for (int k = 1; k <= n; k++) {
		for (int j = 1; j <= n; j++) {
			grid[at(n, k, j, 0)] = grid[at(n, k, j, n)];
			grid[at(n, k, j, n + 1)] = grid[at(n, k, j, 1)];
		}
		memcpy(grid + at(n, k, 0, 0), grid + at(n, k, n, 0), (n + 2) * sizeof(*grid));
		memcpy(grid + at(n, k, n + 1, 0), grid + at(n, k, 1, 0), (n + 2) * sizeof(*grid));
	}
	memcpy(grid, grid + at(n, n, 0, 0), (size_t)(n + 2) * (n + 2) * sizeof(*grid));
	memcpy(grid + at(n, n + 1, 0, 0), grid + at(n, 1, 0, 0), (size_t)(n + 2) * (n + 2) * sizeof(*grid));
}

/* Of each i in a line: the sum of the line's four nearest neighbours there, and that of the four beyond the edges. */
static void neighbours(const double *from, int n, int k, int j, double *near, double *beyond)
{
	const double *up = from + at(n, k + 1, j, 0), *down = from + at(n, k - 1, j, 0);
	const int line = n + 2;

	for (int i = 0; i < line; i++) {
		near[i] = from[at(n, k, j - 1, i)] + from[at(n, k, j + 1, i)] + up[i] + down[i];
		beyond[i] = up[i - line] + up[i + line] + down[i - line] + down[i + line];
	}
}

/* The 27 points around `here`, weighted. */
static inline double weighted(const double w[4], const double *here, const double *near, const double *beyond, int i)
{
	return w[0] * here[i] + w[1] * (here[i - 1] + here[i + 1] + near[i]) + w[2] * (near[i - 1] + near[i + 1] + beyond[i]) +
	       w[3] * (beyond[i - 1] + beyond[i + 1]);
}

/* to = base + sign * (the stencil over from), at every point; to may be base, not from */
static void stencil(double *to, const double *base, double sign, const double w[4], const double *from, int n)
{
#pragma omp parallel
	{
		double near[n + 2], beyond[n + 2];

#pragma omp for schedule(static)
		for (int k = 1; k <= n; k++)
			for (int j = 1; j <= n; j++) {
				size_t line = at(n, k, j, 0);

				neighbours(from, n, k, j, near, beyond);
				for (int i = 1; i <= n; i++)
					to[line + i] = base[line + i] + sign * weighted(w, from + line, near, beyond, i);
			}
	}
	wrap(to, n);
}

/* To half as many points an edge: coarse point i lies on fine point 2i. */
static void restrict_to(double *coarse, const double *fine, int n)
{
#pragma omp parallel
	{
		double near[2 * n + 2], beyond[2 * n + 2];

#pragma omp for schedule(static)
		for (int k = 1; k <= n; k++)
			for (int j = 1; j <= n; j++) {
				neighbours(fine, 2 * n, 2 * k, 2 * j, near, beyond);
				for (int i = 1; i <= n; i++)
					coarse[at(n, k, j, i)] = weighted(RESTRICTION, fine + at(2 * n, 2 * k, 2 * j, 0), near, beyond, 2 * i);
			}
	}
	wrap(coarse, n);
}

/* Add to twice as many points an edge what is there, or halfway between two, four or eight points. */
static void prolong(double *fine, const double *coarse, int n)
{
#pragma omp parallel for schedule(static)
	for (int k = 1; k <= 2 * n; k++)
		for (int j = 1; j <= 2 * n; j++) {
			/* The same line twice where an index is even. */
			const double *a = coarse + at(n, k / 2, j / 2, 0), *b = coarse + at(n, k / 2, (j + 1) / 2, 0);
			const double *c = coarse + at(n, (k + 1) / 2, j / 2, 0), *d = coarse + at(n, (k + 1) / 2, (j + 1) / 2, 0);
			double *line = fine + at(2 * n, k, j, 0);

			for (int i = 1; i <= n; i++) {
				double left = a[i - 1] + b[i - 1] + c[i - 1] + d[i - 1], here = a[i] + b[i] + c[i] + d[i];

				line[2 * i - 1] += (left + here) / 8;
				line[2 * i] += here / 4;
			}
		}
	wrap(fine, 2 * n);
}

static void zero(double *grid, int n)
{
	const size_t layer = (size_t)(n + 2) * (n + 2);

#pragma omp parallel for schedule(static)
	for (int k = 0; k <= n + 1; k++)
		memset(grid + k * layer, 0, layer * sizeof(*grid));
}

static void cycle(int top, const double *smoother)
{
	for (int level = top; level > 1; level--)
		restrict_to(r[level - 1], r[level], 1 << (level - 1));
	for (int level = 1; level <= top; level++) {
		int n = 1 << level;

		if (level < top)
			zero(u[level], n);
		if (level > 1) {
			prolong(u[level], u[level - 1], n / 2);
			/* What is left of the right hand side of this level: v at the top, r below. */
			stencil(r[level], level == top ? v : r[level], -1, RESIDUAL, u[level], n);
		}
		stencil(u[level], u[level], 1, smoother, r[level], n);
	}
	stencil(r[top], v, -1, RESIDUAL, u[top], 1 << top);
}

struct extreme {
	double number;
	size_t place;
};

/* Keep the ten greatest of sign * number that came along; the least of them is the last. */
static void keep(struct extreme *best, double number, size_t place)
{
	int i = CHARGES - 1;

	if (number <= best[i].number)
		return;
	for (; i && best[i - 1].number < number; i--)
		best[i] = best[i - 1];
	best[i] = (struct extreme){ number, place };
}

/* +1 where the ten largest of random numbers would be that fill the grid, -1 at the ten smallest. */
static void charge(int n)
{
	struct extreme most[2][CHARGES];

	for (int i = 0; i < 2 * CHARGES; i++)
		most[i / CHARGES][i % CHARGES].number = -INFINITY;
	zero(v, n);
#pragma omp parallel
	{
		struct extreme mine[2][CHARGES];

		memcpy(mine, most, sizeof(mine));
#pragma omp barrier
#pragma omp for schedule(static)
		for (int k = 0; k < n; k++) {
			uint64_t state = skip(314159265, (uint64_t)k * n * n);

			for (int j = 0; j < n; j++)
				for (int i = 0; i < n; i++) {
					double number = draw(&state);

					keep(mine[0], number, at(n, k + 1, j + 1, i + 1));
					keep(mine[1], -number, at(n, k + 1, j + 1, i + 1));
				}
		}
#pragma omp critical
		for (int i = 0; i < 2 * CHARGES; i++)
			keep(most[i / CHARGES], mine[i / CHARGES][i % CHARGES].number, mine[i / CHARGES][i % CHARGES].place);
	}
	for (int i = 0; i < 2 * CHARGES; i++)
		v[most[i / CHARGES][i % CHARGES].place] = i < CHARGES ? 1 : -1;
	wrap(v, n);
}

static double norm(const double *grid, int n)
{
	double sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
	for (int k = 1; k <= n; k++)
		for (int j = 1; j <= n; j++)
			for (int i = 1; i <= n; i++)
				sum += grid[at(n, k, j, i)] * grid[at(n, k, j, i)];
	return sqrt(sum / n / n / n);
}

int main(int argc, char **argv)
{
	int class = nas_class(argc, argv), top = classes[class].log_edge, n = 1 << top;
	double begin, size = (double)n * n * n;

	for (int level = 1; level <= top; level++) {
		size_t points = at(1 << level, (1 << level) + 2, 0, 0);

		u[level] = array(points, sizeof(*u[level]));
		r[level] = array(points, sizeof(*r[level]));
	}
	v = array(at(n, n + 2, 0, 0), sizeof(*v));
	charge(n);
	zero(u[top], n);
	begin = now();
	stencil(r[top], v, -1, RESIDUAL, u[top], n);
	for (int iteration = 1; iteration <= classes[class].iterations; iteration++)
		cycle(top, class < 3 ? SMALL_SMOOTHER : LARGE_SMOOTHER);
	begin = now() - begin;
	return verdict(same("norm", norm(r[top], n), classes[class].norm, 1e-8), 58 * size * classes[class].iterations, begin);
}
