import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The job latency_rows of benchmarks/jobs.py for Flink: paced rows, keyBy, a counter per key in ValueState, a sink that
 * reads the clock. Arguments: folder, rows per second, seconds of warm-up, seconds to measure, buffer timeout (ms).
 *
 * <p>At every checkpoint each sink subtask writes the latencies of rows that were due after the warm-up to a new file:
 * microseconds, as little-endian 64-bit integers.
 */
public final class LatencyJob {
    private static final int PARALLELISM = 2;
    private static final long KEYS = 10_000;

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        long rate = Long.parseLong(arguments[1]);
        long warmup = Long.parseLong(arguments[2]);
        long seconds = Long.parseLong(arguments[3]);
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "1 s");
        configuration.setString("execution.checkpointing.dir", "file://" + folder + "/checkpoints");
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("rest.port", "0");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, configuration);
        env.setBufferTimeout(Long.parseLong(arguments[4]));
        long rows = rate * (warmup + seconds);
        env.fromSource(
                        new DataGeneratorSource<>(
                                new Paced(rate, rows), rows, Types.TUPLE(Types.LONG, Types.LONG)),
                        WatermarkStrategy.noWatermarks(),
                        "rows")
                .keyBy(row -> row.f0, Types.LONG)
                .process(new CountPerKey())
                .returns(Types.TUPLE(Types.LONG, Types.LONG, Types.LONG))
                .sinkTo(new LatencySink(folder, warmup * 1_000_000));
        env.execute("latency");
    }

    private static long nowUs() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    /** Makes (key, due) of row n, and waits until the row is due. The first row of a subtask is due at once. */
    private static final class Paced implements GeneratorFunction<Long, Tuple2<Long, Long>> {
        private final long rate;
        private final long rowsPerSubtask;
        private long originUs;

        Paced(long rate, long rows) {
            this.rate = rate;
            this.rowsPerSubtask = rows / PARALLELISM; // each subtask gets consecutive numbers
        }

        @Override
        public Tuple2<Long, Long> map(Long n) {
            long sinceUs = n % rowsPerSubtask * PARALLELISM * 1_000_000 / rate;
            if (originUs == 0) {
                originUs = nowUs() - sinceUs;
            }
            long dueUs = originUs + sinceUs;
            for (long earlyUs; (earlyUs = dueUs - nowUs()) > 0; ) {
                LockSupport.parkNanos(earlyUs * 1000);
            }
            return Tuple2.of((((n * 2_654_435_761L) & 0x7FFF_FFFF) >> 11) * KEYS >> 20, dueUs);
        }
    }

    private static final class CountPerKey
            extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple3<Long, Long, Long>> {
        private transient ValueState<Long> seen;

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(new ValueStateDescriptor<>("seen", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<Long, Long> row, Context context, Collector<Tuple3<Long, Long, Long>> out)
                throws IOException {
            Long before = seen.value();
            long now = before == null ? 1 : before + 1;
            seen.update(now);
            out.collect(Tuple3.of(row.f0, row.f1, now));
        }
    }

    private static final class LatencySink implements Sink<Tuple3<Long, Long, Long>> {
        private final String folder;
        private final long warmupUs;

        LatencySink(String folder, long warmupUs) {
            this.folder = folder;
            this.warmupUs = warmupUs;
        }

        @Override
        public SinkWriter<Tuple3<Long, Long, Long>> createWriter(WriterInitContext context) {
            return new LatencyWriter(Path.of(folder), context.getTaskInfo().getIndexOfThisSubtask(), warmupUs);
        }
    }

    private static final class LatencyWriter implements SinkWriter<Tuple3<Long, Long, Long>> {
        private final Path folder;
        private final int subtask;
        private final long warmupUs;
        private final ByteBuffer latencies = ByteBuffer.allocate(16 << 20).order(ByteOrder.LITTLE_ENDIAN);
        private long firstUs;
        private int files;

        LatencyWriter(Path folder, int subtask, long warmupUs) {
            this.folder = folder;
            this.subtask = subtask;
            this.warmupUs = warmupUs;
        }

        @Override
        public void write(Tuple3<Long, Long, Long> row, Context context) {
            if (firstUs == 0) {
                firstUs = row.f1;
            }
            if (row.f1 >= firstUs + warmupUs) {
                latencies.putLong(nowUs() - row.f1);
            }
        }

        @Override
        public void flush(boolean endOfInput) throws IOException {
            if (latencies.position() > 0) {
                byte[] seen = new byte[latencies.flip().remaining()];
                latencies.get(seen).clear();
                Files.write(folder.resolve(String.format("%04d-%06d.latencies", subtask, files++)), seen);
            }
        }

        @Override
        public void close() {}
    }
}
