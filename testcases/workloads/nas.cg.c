/*
 * CG, conjugate gradient: the smallest eigenvalue of a sparse symmetric matrix of random pattern, by inverse iteration
 * with 25 steps of conjugate gradients each (the report, kernel CG).
 *
 * The matrix is the sum over i of w^i x_i x_i', plus (0.1 - shift) I: w^n = 0.1, and x_i is a sparse random vector with
 * 0.5 at place i.
 */
#include "nas.h"

enum { STEPS = 25, MOST = 21 + 1 };

static const struct {
	int rows, nonzeros, iterations;
	double shift, zeta;
} classes[] = {
	{ 1400, 7, 15, 10, 8.5971775078648 },	 { 7000, 8, 15, 12, 10.362595087124 },
	{ 14000, 11, 15, 20, 17.130235054029 },	 { 75000, 13, 75, 60, 22.712745482631 },
	{ 150000, 15, 75, 110, 28.973605592845 }, { 1500000, 21, 100, 500, 52.514532105794 },
};

static const double CONDITION = 0.1;

struct vector {
	int length, place[MOST];
	double value[MOST];
};

static int rows;
static size_t *start;	/* of each row in column and value; one more for the end */
static int *column;
static double *value;
static double *x, *z, *p, *q, *r;

static int find(const struct vector *v, int place)
{
	for (int i = 0; i < v->length; i++)
		if (v->place[i] == place)
			return i;
	return v->length;
}

/* Random places below the next power of two; those that are no row, or there already, are drawn again. */
static void make_vectors(struct vector *vectors, int nonzeros)
{
	uint64_t state = 314159265;
	int wide = 1;

	while (wide < rows)
		wide *= 2;
	draw(&state);	/* the sequence begins with its second number */
	for (int i = 0; i < rows; i++) {
		struct vector *v = &vectors[i];
		int at;

		while (v->length < nonzeros) {
			double number = draw(&state);
			int place = wide * draw(&state);

			if (place >= rows || find(v, place) < v->length)
				continue;
			v->place[v->length] = place;
			v->value[v->length++] = number;
		}
		at = find(v, i);
		v->place[at] = i;
		v->value[at] = 0.5;
		v->length += at == v->length;
	}
}

/* For each row, the vectors that have it: users[first[row]] to users[first[row + 1] - 1]. */
static int *find_users(const struct vector *vectors, size_t *first)
{
	int *users;

	for (int i = 0; i < rows; i++)
		for (int k = 0; k < vectors[i].length; k++)
			first[vectors[i].place[k] + 2]++;
	for (int row = 0; row <= rows; row++)
		first[row + 1] += first[row];
	users = calloc(first[rows + 1], sizeof(*users));
	if (!users)
		die("calloc");
	for (int i = 0; i < rows; i++)
		for (int k = 0; k < vectors[i].length; k++)
			users[first[vectors[i].place[k] + 1]++] = i;
	return users;
}

/* One row of the sum, into a dense array and a list of its columns; returns how many there are. */
static int add_row(int row, const struct vector *vectors, const size_t *first, const int *users, double shift, double *dense, int *there)
{
	int count = 0;

	for (size_t use = first[row]; use < first[row + 1]; use++) {
		const struct vector *v = &vectors[users[use]];
		double scale = pow(CONDITION, (double)users[use] / rows) * v->value[find(v, row)];

		for (int k = 0; k < v->length; k++) {
			int col = v->place[k];

			if (isnan(dense[col])) {
				dense[col] = 0;
				there[count++] = col;
			}
			dense[col] += scale * v->value[k];
		}
	}
	dense[row] += CONDITION - shift;
	return count;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Twice over all rows: how long they are, then what is in them. NaN in the dense array is "no such column yet". */
static void make_matrix(int nonzeros, double shift)
{
	struct vector *vectors = calloc(rows, sizeof(*vectors));
	size_t *first = calloc(rows + 2, sizeof(*first));
	int *users;

	if (!vectors || !first)
		die("calloc");
	make_vectors(vectors, nonzeros);
	users = find_users(vectors, first);
	start = array(rows + 1, sizeof(*start));
	for (int fill = 0; fill < 2; fill++) {
#pragma omp parallel
		{
			double *dense = malloc(rows * sizeof(*dense));
			int *there = malloc(rows * sizeof(*there));

			if (!dense || !there)
				die("malloc");
			for (int i = 0; i < rows; i++)
				dense[i] = NAN;
#pragma omp for schedule(static)
			for (int row = 0; row < rows; row++) {
				int count = add_row(row, vectors, first, users, shift, dense, there);

				if (fill)
					qsort(there, count, sizeof(*there), by_number);
				else
					start[row + 1] = count;
				for (int k = 0; k < count; k++) {
					if (fill) {
						column[start[row] + k] = there[k];
						value[start[row] + k] = dense[there[k]];
					}
					dense[there[k]] = NAN;
				}
			}
			free(there);
			free(dense);
		}
		if (fill)
			break;
		for (int row = 0; row < rows; row++)
			start[row + 1] += start[row];
		column = array(start[rows], sizeof(*column));
		value = array(start[rows], sizeof(*value));
	}
	free(users);
	free(first);
	free(vectors);
}

/* to = A from; returns from . to */
static double multiply(double *to, const double *from)
{
	double dot = 0;

#pragma omp parallel for schedule(static) reduction(+ : dot)
	for (int row = 0; row < rows; row++) {
		double sum = 0;

		for (size_t k = start[row]; k < start[row + 1]; k++)
			sum += value[k] * from[column[k]];
		to[row] = sum;
		dot += from[row] * sum;
	}
	return dot;
}

/* Solve A z = x, nearly; returns what is left, |x - A z|. */
static double solve(void)
{
	double rho = 0, left = 0;

#pragma omp parallel for schedule(static) reduction(+ : rho)
	for (int i = 0; i < rows; i++) {
		z[i] = 0;
		r[i] = p[i] = x[i];
		rho += x[i] * x[i];
	}
	for (int step = 0; step < STEPS; step++) {
		double alpha = rho / multiply(q, p), before = rho;

		rho = 0;
#pragma omp parallel for schedule(static) reduction(+ : rho)
		for (int i = 0; i < rows; i++) {
			z[i] += alpha * p[i];
			r[i] -= alpha * q[i];
			rho += r[i] * r[i];
		}
#pragma omp parallel for schedule(static)
		for (int i = 0; i < rows; i++)
			p[i] = r[i] + rho / before * p[i];
	}
	multiply(q, z);
#pragma omp parallel for schedule(static) reduction(+ : left)
	for (int i = 0; i < rows; i++)
		left += (x[i] - q[i]) * (x[i] - q[i]);
	return sqrt(left);
}

int main(int argc, char **argv)
{
	int class = nas_class(argc, argv), nonzeros = classes[class].nonzeros;
	double begin, zeta = 0, per_row = 3 + nonzeros * (nonzeros + 1) + STEPS * (5 + nonzeros * (nonzeros + 1)) + 3;

	rows = classes[class].rows;
	make_matrix(nonzeros, classes[class].shift);
	x = array(rows, sizeof(*x));
	z = array(rows, sizeof(*z));
	p = array(rows, sizeof(*p));
	q = array(rows, sizeof(*q));
	r = array(rows, sizeof(*r));
#pragma omp parallel for schedule(static)
	for (int i = 0; i < rows; i++)
		x[i] = 1;
	begin = now();
	for (int iteration = 1; iteration <= classes[class].iterations; iteration++) {
		double left = solve(), along = 0, length = 0;

#pragma omp parallel for schedule(static) reduction(+ : along, length)
		for (int i = 0; i < rows; i++) {
			along += x[i] * z[i];
			length += z[i] * z[i];
		}
		length = 1 / sqrt(length);
#pragma omp parallel for schedule(static)
		for (int i = 0; i < rows; i++)
			x[i] = length * z[i];
		zeta = classes[class].shift + 1 / along;
		printf("iteration %d: |r| %.3e, zeta %.13f\n", iteration, left, zeta);
	}
	begin = now() - begin;
	return verdict(same("zeta", zeta, classes[class].zeta, 1e-10), 2.0 * classes[class].iterations * rows * per_row, begin);
}
