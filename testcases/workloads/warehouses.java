/*
 * Warehouses in the likeness of SPECjbb 2005: a thread each, over one shared heap, and transactions a second.
 *
 * Each round begins a new thread for each of its warehouses, all at the same moment, as SPECjbb does for each point of
 * its measurement: the warehouses stay, and their orders grow old and are collected. A warehouse has items in stock,
 * customers, and the orders of the last while. Of 100 transactions 44 are new orders, 43 payments, 4 each deliveries, looks
 * at an order and at the stock, and one moves stock from another warehouse.
 */

import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

final class Warehouses {
	static final int LINES = 10;

	/** What a customer ordered: items, how many of each, what it costs. */
	static final class Order {
		final int customer;
		final int[] items = new int[LINES];
		final int[] counts = new int[LINES];
		final byte[] note;
		long cents;
		boolean delivered;

		Order(int customer, int noteBytes) {
			this.customer = customer;
			note = new byte[noteBytes];
		}
	}

	static final class Warehouse {
		final int[] stock;
		final int[] prices;
		final long[] balances;
		final byte[][] customers;
		final Order[] orders;
		long placed;
		long paid;

		Warehouse(int mib, SplittableRandom random) {
			int parts = mib << 10;
			stock = new int[parts * 64];
			prices = new int[parts * 64];
			for (int item = 0; item < stock.length; item++) {
				stock[item] = 50;
				prices[item] = 100 + random.nextInt(9900);
			}
			customers = new byte[parts][256];
			balances = new long[parts];
			orders = new Order[parts / 4];
		}

		synchronized int take(int item, int count) {
			if (stock[item] < count)
				stock[item] += 91;
			stock[item] -= count;
			return prices[item] * count;
		}

		void order(SplittableRandom random) {
			Order order = new Order(random.nextInt(balances.length), 512);
			for (int line = 0; line < LINES; line++) {
				order.items[line] = random.nextInt(stock.length);
				order.counts[line] = 1 + random.nextInt(9);
				order.cents += take(order.items[line], order.counts[line]);
			}
			balances[order.customer] -= order.cents;
			customers[order.customer][random.nextInt(256)]++;
			orders[(int) (placed++ % orders.length)] = order;
		}

		void payment(SplittableRandom random) {
			int customer = random.nextInt(balances.length);
			int cents = 100 + random.nextInt(500000);
			balances[customer] += cents;
			paid += cents;
			for (int i = 0; i < 256; i++)
				customers[customer][i] += cents;
		}

		void delivery(SplittableRandom random) {
			for (int i = 0; i < 10; i++) {
				Order order = orders[random.nextInt(orders.length)];
				if (order != null && !order.delivered) {
					order.delivered = true;
					balances[order.customer] += order.cents;
				}
			}
		}

		long look(SplittableRandom random) {
			Order order = orders[random.nextInt(orders.length)];
			long sum = 0;
			for (int line = 0; order != null && line < LINES; line++)
				sum += order.counts[line] * (long) prices[order.items[line]];
			return sum;
		}

		long low(SplittableRandom random) {
			int from = random.nextInt(stock.length - 2000);
			long low = 0;
			for (int item = from; item < from + 2000; item++)
				low += stock[item] < 15 ? 1 : 0;
			return low;
		}
	}

	static long work(Warehouse mine, Warehouse[] all, SplittableRandom random, long until) {
		long done = 0;
		long seen = 0;
		while (System.nanoTime() < until) {
			int kind = random.nextInt(100);
			if (kind < 44)
				mine.order(random);
			else if (kind < 87)
				mine.payment(random);
			else if (kind < 91)
				mine.delivery(random);
			else if (kind < 95)
				seen += mine.look(random);
			else if (kind < 99)
				seen += mine.low(random);
			else
				seen += all[random.nextInt(all.length)].take(random.nextInt(mine.stock.length), 1);
			done++;
		}
		if (seen < 0)
			throw new AssertionError("negative prices");
		return done;
	}

	static void together(int count, java.util.function.IntConsumer each) throws InterruptedException {
		CountDownLatch ready = new CountDownLatch(count);
		AtomicLong failed = new AtomicLong();
		Thread[] threads = new Thread[count];
		for (int number = 0; number < count; number++) {
			int me = number;
			threads[number] = new Thread(() -> {
				ready.countDown();
				try {
					ready.await();
					each.accept(me);
				} catch (Throwable error) {
					error.printStackTrace();
					failed.incrementAndGet();
				}
			});
			threads[number].start();
		}
		for (Thread thread : threads)
			thread.join();
		if (failed.get() != 0)
			System.exit(1);
	}

	public static void main(String[] words) throws InterruptedException {
		if (words.length != 4) {
			System.err.println("usage: Warehouses WAREHOUSES MIB SECONDS ROUNDS");
			System.exit(2);
		}
		int count = Integer.parseInt(words[0]);
		int mib = Integer.parseInt(words[1]);
		long nanos = Long.parseLong(words[2]) * 1_000_000_000L;
		int rounds = Integer.parseInt(words[3]);
		Warehouse[] all = new Warehouse[count];
		together(count, me -> all[me] = new Warehouse(mib, new SplittableRandom(me)));
		long most = 0;
		long sum = 0;
		for (int round = 1; round <= rounds; round++) {
			/* From one warehouse to all, as SPECjbb goes up. */
			int now = Math.max(1, count * round / rounds);
			AtomicLong done = new AtomicLong();
			long salt = 1000L * round;
			long start = System.nanoTime();
			together(now, me -> done.addAndGet(work(all[me], all, new SplittableRandom(salt + me), start + nanos)));
			long rate = done.get() * 1_000_000_000L / (System.nanoTime() - start);
			most = Math.max(most, rate);
			sum += done.get();
		}
		System.out.println("numalab: transactions " + sum);
		System.out.println("numalab: most_transactions_per_second " + most);
	}
}
