/*
 * LU: the equations of a viscous compressible flow in a cube, stepped to their steady state by symmetric successive
 * over-relaxation (the report, application LU).
 *
 * A point has five values: density, momentum along each axis, energy. The exact solution is a polynomial: it is at the
 * boundary all the time, and the forcing term is the operator applied to it. The grid has as many points along each axis.
 */
#include "nas.h"
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { VALUES = 5, ENERGY = 4, AXES = 3 };

static const struct {
	int edge, steps;
	double dt, residual[VALUES], error[VALUES], surface;
} classes[] = {
	{ 12, 50, 0.5,
	  { 1.6196343210976702e-02, 2.1976745164821318e-03, 1.5179927653399185e-03, 1.5029584435994323e-03, 3.4264073155896461e-02 },
	  { 6.4223319957960924e-04, 8.4144342047347926e-05, 5.8588269616485186e-05, 5.8474222595157350e-05, 1.3103347914111294e-03 },
	  7.8418928865937083 },
	{ 33, 300, 1.5e-3,
	  { 1.236511638192e+01, 1.317228477799e+00, 2.550120713095e+00, 2.326187750252e+00, 2.826799444189e+01 },
	  { 4.867877144216e-01, 5.064652880982e-02, 9.281818101960e-02, 8.570126542733e-02, 1.084277417792e+00 },
	  1.161399311023e+01 },
	{ 64, 250, 2,
	  { 7.7902107606689367e+02, 6.3402765259692870e+01, 1.9499249727292479e+02, 1.7845301160418537e+02, 1.8384760349464247e+03 },
	  { 2.9964085685471943e+01, 2.8194576365003349e+00, 7.3473412698774742e+00, 6.7139225687777051e+00, 7.0715315688392578e+01 },
	  2.6030925604886277e+01 },
	{ 102, 250, 2,
	  { 3.5532672969982736e+03, 2.6214750795310692e+02, 8.8333721850952190e+02, 7.7812774739425265e+02, 7.3087969592545314e+03 },
	  { 1.1401176380212709e+02, 8.1098963655421574e+00, 2.8480597317698308e+01, 2.5905394567832939e+01, 2.6054907504857413e+02 },
	  4.7887162703308227e+01 },
	{ 162, 250, 2,
	  { 1.03766980323537846e+04, 8.92212458801008552e+02, 2.56238814582660871e+03, 2.19194343857831427e+03, 1.78078057261061185e+04 },
	  { 2.15986399716949279e+02, 1.55789559239863600e+01, 5.41318863077207766e+01, 4.82262643154045421e+01, 4.55902910043250358e+02 },
	  6.66404553572181300e+01 },
	{ 408, 300, 1,
	  { 4.868417937025e+04, 4.696371050071e+03, 1.218114549776e+04, 1.033801493461e+04, 7.142398413817e+04 },
	  { 3.752393004482e+02, 3.084128893659e+01, 9.434276905469e+01, 8.230686681928e+01, 7.002620636210e+02 },
	  8.334101392503e+01 },
};

/* Constants of the report: k1 to k5, what is added for stability by the second derivative of each axis, and by the fourth. */
static const double K1 = 1.4, K2 = 0.4, K3 = 0.1, K4 = 1, K5 = 1.4;
static const double SECOND[AXES] = { 0.75, 0.75, 1 }, FOURTH = 0.25;
static const double OMEGA = 1.2;

/* The exact solution's: the constant, then the four powers, each of the three axes. */
static const double COEFFICIENTS[VALUES][1 + 4 * AXES] = {
	{ 2, 0, 0, 4, 5, 3, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3 },
	{ 1, 0, 0, 0, 1, 2, 3, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5 },
	{ 2, 2, 0, 0, 0, 2, 3, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4 },
	{ 2, 2, 0, 0, 0, 2, 3, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3 },
	{ 5, 4, 3, 2, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2 },
};

static int n;		/* points along each axis */
static double dt, width;	/* of a time step; between points */
static double *u, *forcing, *residual;
static ptrdiff_t strides[AXES];	/* to the next point along each axis */

static size_t at(int k, int j, int i)
{
	return (((size_t)k * n + j) * n + i) * VALUES;
}

static void exact(double *to, int k, int j, int i)
{
	const double place[AXES] = { i * width, j * width, k * width };

	for (int m = 0; m < VALUES; m++) {
		const double *c = COEFFICIENTS[m];

		to[m] = c[0];
		for (int axis = 0; axis < AXES; axis++) {
			double x = place[axis];

			to[m] += x * (c[1 + axis] + x * (c[4 + axis] + x * (c[7 + axis] + x * c[10 + axis])));
		}
	}
}

/* Exact at the boundary; within, what interpolates between the six sides. */
static void start(void)
{
#pragma omp parallel for schedule(static)
	for (int k = 0; k < n; k++)
		for (int j = 0; j < n; j++)
			for (int i = 0; i < n; i++) {
				double *to = u + at(k, j, i), side[2 * AXES][VALUES];

				if (!i || i == n - 1 || !j || j == n - 1 || !k || k == n - 1) {
					exact(to, k, j, i);
					continue;
				}
				exact(side[0], k, j, 0);
				exact(side[1], k, j, n - 1);
				exact(side[2], k, 0, i);
				exact(side[3], k, n - 1, i);
				exact(side[4], 0, j, i);
				exact(side[5], n - 1, j, i);
				for (int m = 0; m < VALUES; m++) {
					double x = side[0][m] + i * width * (side[1][m] - side[0][m]);
					double y = side[2][m] + j * width * (side[3][m] - side[2][m]);
					double z = side[4][m] + k * width * (side[5][m] - side[4][m]);

					to[m] = x + y + z - x * y - y * z - z * x + x * y * z;
				}
			}
}

/* The flux along an axis at a point. */
static void convection(double *flux, const double *here, int axis)
{
	double speed = here[1 + axis] / here[0];
	double half = (here[1] * here[1] + here[2] * here[2] + here[3] * here[3]) / here[0] / 2;

	flux[0] = here[1 + axis];
	for (int m = 1; m <= AXES; m++)
		flux[m] = here[m] * speed;
	flux[1 + axis] += K2 * (here[ENERGY] - half);
	flux[ENERGY] = (K1 * here[ENERGY] - K2 * half) * speed;
}

/* The viscous flux along an axis, between two points; density has none. */
static void viscosity(double *flux, const double *before, const double *here, int axis)
{
	double squares = 0, own = 0;

	flux[0] = 0;
	for (int m = 1; m <= AXES; m++) {
		double a = before[m] / before[0], b = here[m] / here[0];

		flux[m] = K3 * K4 * (m == 1 + axis ? 4.0 / 3 : 1) * (b - a) / width;
		squares += b * b - a * a;
		own = m == 1 + axis ? b * b - a * a : own;
	}
	flux[ENERGY] = K3 * K4 / width *
		       ((1 - K1 * K5) / 2 * squares + own / 6 + K1 * K5 * (here[ENERGY] / here[0] - before[ENERGY] / before[0]));
}

/* Add the operator's part along one axis to the inner points of a line. */
static void add_line(double *to, const double *from, int axis)
{
	const ptrdiff_t step = strides[axis];
	double flux[n][VALUES], viscous[n][VALUES];

	for (int i = 0; i < n; i++) {
		convection(flux[i], from + i * step, axis);
		if (i)
			viscosity(viscous[i], from + (i - 1) * step, from + i * step, axis);
	}
	for (int i = 1; i < n - 1; i++)
		for (int m = 0; m < VALUES; m++) {
			const double *here = from + i * step + m;
			double fourth = (i == 1 || i == n - 2 ? 5 : 6) * *here;

			/* The fourth difference is one-sided beside the boundary, whose values it leaves out. */
			if (i > 1)
				fourth -= 4 * here[-step];
			if (i > 2)
				fourth += here[-2 * step];
			if (i < n - 2)
				fourth -= 4 * here[step];
			if (i < n - 3)
				fourth += here[2 * step];
			to[i * step + m] += (flux[i - 1][m] - flux[i + 1][m]) / (2 * width) + (viscous[i + 1][m] - viscous[i][m]) / width +
					    SECOND[axis] * (here[-step] - 2 * *here + here[step]) / (width * width) - FOURTH * fourth;
		}
}

/* Add the operator applied to `from` at all inner points. */
static void operate(double *to, const double *from)
{
#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 1; k < n - 1; k++)
			for (int j = 1; j < n - 1; j++) {
				add_line(to + at(k, j, 0), from + at(k, j, 0), 0);
				add_line(to + at(k, 0, j), from + at(k, 0, j), 1);
			}
#pragma omp for schedule(static)
		for (int j = 1; j < n - 1; j++)
			for (int i = 1; i < n - 1; i++)
				add_line(to + at(0, j, i), from + at(0, j, i), 2);
	}
}

/* The forcing term: u holds the exact solution meanwhile. */
static void force(void)
{
#pragma omp parallel for schedule(static)
	for (int k = 0; k < n; k++)
		for (int j = 0; j < n; j++)
			for (int i = 0; i < n; i++) {
				exact(u + at(k, j, i), k, j, i);
				memset(forcing + at(k, j, i), 0, VALUES * sizeof(*forcing));
			}
	operate(forcing, u);
}

static void find_residual(void)
{
	const size_t layer = at(1, 0, 0);

#pragma omp parallel for schedule(static)
	for (int k = 0; k < n; k++)
		for (size_t i = k * layer; i < (k + 1) * layer; i++)
			residual[i] = -forcing[i];
	operate(residual, u);
}

/*
 * Add to `sum` what a neighbour contributes along an axis: dt (side J / 2h + (N + d) / h^2) x. J and N are the Jacobians of
 * the convective and the viscous flux at the neighbour's u, d the added second derivative; side is 1 below, -1 above.
 */
static void add_neighbour(double *sum, const double *point, const double *x, int axis, int side)
{
	double convective[VALUES], viscous[VALUES], v[1 + AXES], along = 0, half = 0, pressure;
	double speed = point[1 + axis] / point[0], energy = point[ENERGY] / point[0], flow = x[1 + axis] - speed * x[0];

	for (int m = 1; m <= AXES; m++) {
		v[m] = point[m] / point[0];
		along += v[m] * x[m];
		half += v[m] * v[m] / 2;
	}
	pressure = K2 * (x[ENERGY] - along + half * x[0]);
	convective[0] = x[1 + axis];
	viscous[0] = 0;
	viscous[ENERGY] = K1 * K3 * K4 * K5 * (x[ENERGY] - energy * x[0]) / point[0];
	for (int m = 1; m <= AXES; m++) {
		double stress = K3 * K4 * (m == 1 + axis ? 4.0 / 3 : 1), change = (x[m] - v[m] * x[0]) / point[0];

		convective[m] = v[m] * flow + speed * x[m] + (m == 1 + axis ? pressure : 0);
		viscous[m] = stress * change;
		viscous[ENERGY] += (stress - K1 * K3 * K4 * K5) * v[m] * change;
	}
	convective[ENERGY] = (x[ENERGY] + pressure) * speed + (K1 * energy - K2 * half) * flow;
	for (int m = 0; m < VALUES; m++)
		sum[m] += dt * (side * convective[m] / (2 * width) + (viscous[m] + SECOND[axis] * x[m]) / (width * width));
}

/* Solve (1 + 2 dt / h^2 (N + d)) x = x, N and d summed over the axes: a lower triangle, since N is. */
static void solve(double *x, const double *point)
{
	double twice = 2 * dt / (width * width), plain = 1 + twice * (SECOND[0] + SECOND[1] + SECOND[2]), work = 0;
	double momentum = twice / point[0] * K3 * K4 * 10 / 3, heat = twice / point[0] * K1 * K3 * K4 * K5 * AXES;

	x[0] /= plain;
	for (int m = 1; m <= AXES; m++) {
		double v = point[m] / point[0];

		x[m] = (x[m] + momentum * v * x[0]) / (plain + momentum);
		work += v * (x[m] - v * x[0]);
	}
	x[ENERGY] = (x[ENERGY] + heat * point[ENERGY] / point[0] * x[0] - (momentum - heat) * work) / (plain + heat);
}

/* One point of a sweep: side 1 has the new values below, -1 those above. */
static void relax(size_t here, int side)
{
	double sum[VALUES] = { 0 };

	for (int axis = 0; axis < AXES; axis++)
		add_neighbour(sum, u + here - side * strides[axis], residual + here - side * strides[axis], axis, side);
	for (int m = 0; m < VALUES; m++)
		sum[m] = OMEGA * sum[m] + (side > 0 ? residual[here + m] : 0);
	solve(sum, u + here);
	for (int m = 0; m < VALUES; m++)
		residual[here + m] = sum[m] + (side > 0 ? 0 : residual[here + m]);
}

struct progress {
	_Alignas(64) atomic_int planes;
};

/*
 * All points in order (side 1), or in reverse. A point needs three neighbours first: every thread has a slab of rows in each
 * plane, and begins a plane when the thread beside it has finished its own slab there.
 */
static void sweep(int side)
{
	struct progress done[omp_get_max_threads()];

	memset(done, 0, sizeof(done));
#pragma omp parallel
	{
		const int threads = omp_get_num_threads(), me = omp_get_thread_num(), first = me - side;
		const int low = (long)(n - 2) * me / threads, high = (long)(n - 2) * (me + 1) / threads;

		for (int plane = 1; plane < n - 1; plane++) {
			while (first >= 0 && first < threads && atomic_load_explicit(&done[first].planes, memory_order_acquire) < plane)
				sched_yield();
			for (int row = low; row < high; row++)
				for (int point = 1; point < n - 1; point++) {
					int j = side > 0 ? row + 1 : high + low - row;

					relax(side > 0 ? at(plane, j, point) : at(n - 1 - plane, j, n - 1 - point), side);
				}
			atomic_store_explicit(&done[me].planes, plane, memory_order_release);
		}
	}
}

static void step(void)
{
	const size_t layer = at(1, 0, 0);

#pragma omp parallel for schedule(static)
	for (size_t k = 0; k < (size_t)n; k++)
		for (size_t i = k * layer; i < (k + 1) * layer; i++)
			residual[i] *= dt;
	sweep(1);
	sweep(-1);
#pragma omp parallel for schedule(static)
	for (size_t k = 0; k < (size_t)n; k++)
		for (size_t i = k * layer; i < (k + 1) * layer; i++)
			u[i] += residual[i] / (OMEGA * (2 - OMEGA));
	find_residual();
}

/* Whether the root mean square of each value over the inner points is the published one: of the residual, or the error of u. */
static bool norms(const char *what, bool error, const double *published)
{
	bool good = true;

	for (int m = 0; m < VALUES; m++) {
		double sum = 0;
		char name[32];

#pragma omp parallel for schedule(static) reduction(+ : sum)
		for (int k = 1; k < n - 1; k++)
			for (int j = 1; j < n - 1; j++)
				for (int i = 1; i < n - 1; i++) {
					double true_value[VALUES], difference = residual[at(k, j, i) + m];

					if (error) {
						exact(true_value, k, j, i);
						difference = true_value[m] - u[at(k, j, i) + m];
					}
					sum += difference * difference;
				}
		snprintf(name, sizeof(name), "%s %d", what, m + 1);
		good &= same(name, sqrt(sum / (n - 2) / (n - 2) / (n - 2)), published[m], 1e-8);
	}
	return good;
}

static double pressure(int k, int j, int i)
{
	const double *here = u + at(k, j, i);

	return K2 * (here[ENERGY] - (here[1] * here[1] + here[2] * here[2] + here[3] * here[3]) / here[0] / 2);
}

/* The integral of the pressure over the sides of a box, by the trapezoidal rule. */
static double surface(void)
{
	const int low[AXES] = { 1, 1, 2 }, high[AXES] = { n - 2, n - 3, n - 2 };
	double sum = 0;

	for (int axis = 0; axis < AXES; axis++) {
		const int a = (axis + 1) % AXES, b = (axis + 2) % AXES;

		for (int side = 0; side < 2; side++)
			for (int p = low[a]; p < high[a]; p++)
				for (int q = low[b]; q < high[b]; q++)
					for (int corner = 0; corner < 4; corner++) {
						int place[AXES];

						place[axis] = side ? high[axis] : low[axis];
						place[a] = p + corner / 2;
						place[b] = q + corner % 2;
						sum += pressure(place[2], place[1], place[0]);
					}
	}
	return sum * width * width / 4;
}

int main(int argc, char **argv)
{
	int class = nas_class(argc, argv);
	double begin, points, edge;
	bool good;

	n = classes[class].edge;
	dt = classes[class].dt;
	width = 1.0 / (n - 1);
	for (int axis = 0; axis < AXES; axis++)
		strides[axis] = at(axis == 2, axis == 1, axis == 0);
	u = array(at(n, 0, 0), sizeof(*u));
	residual = array(at(n, 0, 0), sizeof(*residual));
	forcing = array(at(n, 0, 0), sizeof(*forcing));
	force();
	start();
	find_residual();
	begin = now();
	for (int i = 0; i < classes[class].steps; i++)
		step();
	begin = now() - begin;
	good = norms("residual", false, classes[class].residual);
	good &= norms("error", true, classes[class].error);
	good &= same("surface integral", surface(), classes[class].surface, 1e-8);
	edge = n;
	points = edge * edge * edge;
	/* Operations a step, as NPB counts them. */
	return verdict(good, classes[class].steps * (1984.77 * points - 10923.3 * edge * edge + 27770.9 * edge - 144010), begin);
}
