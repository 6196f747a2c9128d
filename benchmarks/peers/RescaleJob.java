import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/**
 * The job large_state of benchmarks/jobs.py for Flink: paced rows, counted and summed per key in a window that does not
 * end. It is stopped with a savepoint and started at another parallelism, on one cluster that stays up, in one JVM.
 * Arguments: folder, keys, rows per second, rounds of 2 → 3 → 2.
 *
 * <p>Writes RESULT and a JSON list to standard output: for each switch the milliseconds from the last record before to
 * the first record after.
 */
public final class RescaleJob {
    private static final AtomicLong rows = new AtomicLong();
    private static volatile long lastNs;
    private static volatile long firstNs;

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        long keys = Long.parseLong(arguments[1]);
        long rate = Long.parseLong(arguments[2]);
        int rounds = Integer.parseInt(arguments[3]);
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "5 s");
        configuration.setString("execution.checkpointing.dir", "file://" + folder + "/checkpoints");
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("rest.port", "0");
        configuration.setString("rest.bind-address", "127.0.0.1");
        configuration.setString("rest.address", "127.0.0.1");
        MiniClusterConfiguration cluster =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(configuration)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(3)
                        .build();
        List<String> pauses = new ArrayList<>();
        try (MiniCluster flink = new MiniCluster(cluster)) {
            flink.start();
            int port = flink.getRestAddress().get().getPort();
            JobClient job = start(configuration, port, 2, null, keys, rate);
            // Each of the two subtasks of the source makes every key.
            while (rows.get() < keys * 210 / 100) {
                Thread.sleep(200);
            }
            Thread.sleep(6000); // at least one checkpoint with all of the state
            for (int round = 0; round < rounds; round++) {
                for (int parallelism : new int[] {3, 2}) {
                    String savepoint =
                            job.stopWithSavepoint(false, folder + "/savepoints", SavepointFormatType.CANONICAL)
                                    .get(300, TimeUnit.SECONDS);
                    long stoppedNs = lastNs;
                    firstNs = 0;
                    job = start(configuration, port, parallelism, savepoint, keys, rate);
                    while (firstNs == 0) {
                        Thread.sleep(1);
                    }
                    pauses.add(String.valueOf((firstNs - stoppedNs) / 1_000_000));
                    Thread.sleep(5000);
                }
            }
            job.cancel().get(60, TimeUnit.SECONDS);
        }
        System.out.println("RESULT [" + String.join(", ", pauses) + "]");
        System.exit(0);
    }

    private static JobClient start(
            Configuration configuration, int port, int parallelism, String savepoint, long keys, long rate)
            throws Exception {
        Configuration own = new Configuration(configuration);
        if (savepoint != null) {
            own.setString("execution.state-recovery.path", savepoint);
        }
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createRemoteEnvironment("127.0.0.1", port, own);
        env.setParallelism(parallelism);
        env.setMaxParallelism(128);
        env.fromSource(
                        new DataGeneratorSource<>(
                                new Paced(keys, rate), Long.MAX_VALUE, Types.TUPLE(Types.LONG, Types.LONG)),
                        WatermarkStrategy.<Tuple2<Long, Long>>forMonotonousTimestamps()
                                .withTimestampAssigner((row, before) -> 0L),
                        "rows")
                .setParallelism(2)
                .uid("rows")
                .keyBy(row -> row.f0, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofDays(1)))
                .aggregate(new CountAndSum())
                .uid("windows")
                .sinkTo(new DiscardingSink<>())
                .uid("out");
        return env.executeAsync("large_state");
    }

    /** Makes (key, value) of row n, at half of the rate in each of the two subtasks of the source. */
    private static final class Paced implements GeneratorFunction<Long, Tuple2<Long, Long>> {
        private final long keys;
        private final long rate;
        private long begunNs;
        private long made;

        Paced(long keys, long rate) {
            this.keys = keys;
            this.rate = rate;
        }

        @Override
        public Tuple2<Long, Long> map(Long n) {
            if (begunNs == 0) {
                begunNs = System.nanoTime();
            }
            made++;
            if (made % 64 == 0) {
                long dueNs = begunNs + made * 2 * 1_000_000_000L / rate;
                for (long earlyNs; (earlyNs = dueNs - System.nanoTime()) > 0; ) {
                    LockSupport.parkNanos(earlyNs);
                }
            }
            return Tuple2.of(n % keys, n & 1023);
        }
    }

    private static final class CountAndSum
            implements AggregateFunction<Tuple2<Long, Long>, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Tuple2<Long, Long> row, Tuple2<Long, Long> held) {
            rows.incrementAndGet();
            long now = System.nanoTime();
            lastNs = now;
            if (firstNs == 0) {
                firstNs = now;
            }
            held.f0 += 1;
            held.f1 += row.f1;
            return held;
        }

        @Override
        public Tuple2<Long, Long> getResult(Tuple2<Long, Long> held) {
            return held;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> other) {
            return Tuple2.of(one.f0 + other.f0, one.f1 + other.f1);
        }
    }
}
