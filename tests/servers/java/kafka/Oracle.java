import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.requests.ProduceRequest;

/**
 * Prints what Kafka's client library knows: with "errors" its error codes; with "build" a batch for each codec; with
 * "batches" the judgement of each line of the input, a version of Produce and the records of a partition in hexadecimal
 * digits.
 */
public class Oracle {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("errors")) {
            for (Errors error : Errors.values()) {
                boolean retriable = error.exception() instanceof RetriableException;
                System.out.println(error.code() + " " + error.name() + " " + retriable);
            }
            return;
        }
        if (arguments[0].equals("build")) {
            for (CompressionType type : CompressionType.values()) {
                System.out.println(type + " " + HexFormat.of().formatHex(built(type)));
            }
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            byte[] bytes = words.length < 2 ? new byte[0] : HexFormat.of().parseHex(words[1]);
            System.out.println(judge(Short.parseShort(words[0]), bytes));
        }
    }

    private static byte[] built(CompressionType type) {
        Header[] headers = {new RecordHeader("name", "value".getBytes()), new RecordHeader("null", (byte[]) null)};
        SimpleRecord[] records = new SimpleRecord[100];
        for (int number = 0; number < records.length; number++) {
            byte[] value = "value ".repeat(number * 10).getBytes();
            records[number] = new SimpleRecord(1000L + number, ("key" + number).getBytes(), value, headers);
        }
        ByteBuffer buffer = MemoryRecords.withRecords(Compression.of(type).build(), records).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    /** The error of a batch, or else a checksum over the offsets, times, keys, values and headers of its records. */
    private static String judge(short version, byte[] bytes) {
        try {
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
            ProduceRequest.validateRecords(version, records);
            StringBuilder text = new StringBuilder();
            for (MutableRecordBatch batch : records.batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    text.append(record.offset()).append(' ').append(record.timestamp()).append(' ');
                    text.append(hex(record.key())).append(' ').append(hex(record.value()));
                    for (var header : record.headers()) {
                        text.append(' ').append(header.key()).append('=');
                        text.append(header.value() == null ? "null" : HexFormat.of().formatHex(header.value()));
                    }
                    text.append(';');
                }
            }
            return text.toString();
        } catch (Exception error) {
            return Errors.forException(error).name();
        }
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "null";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
