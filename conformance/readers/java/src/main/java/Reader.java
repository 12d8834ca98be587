import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import io.kaitai.struct.KaitaiStream;
import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.BufferUnderflowException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A reader of GPACK over the Java code that the Kaitai compiler makes of schema/gpack.ksy.
 *
 * <p>It speaks the reader protocol of spec/conformance.md: one JSON object a line. {@code --level structure} leaves the
 * digests out, which cost a pass over the file.
 */
final class Reader {
    private static final Gson JSON = new GsonBuilder().disableHtmlEscaping().create();

    private Reader() {}

    /** Says what is wrong with a file; every other exception is a fault of this program. */
    private static final class Rejection extends Exception {
        final String kind;
        final String rule;

        Rejection(String kind, String rule, String message) {
            super(message);
            this.kind = kind;
            this.rule = rule;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String level = Arrays.equals(arguments, new String[] {"--level", "structure"}) ? "structure" : "digest";
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Map<String, Object> start = new LinkedHashMap<>();
        start.put("type", "start");
        start.put("protocol", 1);
        start.put("name", "gpack-kaitai-java");
        start.put("language", "java");
        start.put("version", "1");
        start.put("level", level);
        out.println(JSON.toJson(start));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject asked = JSON.fromJson(line, JsonObject.class);
            if (asked.get("type").getAsString().equals("stop")) {
                return;
            }
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("type", "result");
            answer.put("seq", asked.get("seq").getAsLong());
            try {
                answer.put("dump", read(asked.get("path").getAsString(), level.equals("digest")));
                answer.put("verdict", "accept");
            } catch (Rejection refused) {
                answer.put("verdict", "reject");
                answer.put("class", refused.kind);
                answer.put("message", String.valueOf(refused.getMessage()));
                if (refused.rule != null) {
                    answer.put("rule", refused.rule);
                }
            }
            out.println(JSON.toJson(answer));
        }
    }

    /** Parses a file through seek and read; no blob is read but to hash it, in pieces. */
    private static Map<String, Object> read(String path, boolean digests) throws Exception {
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            Gpack root = new Gpack(new FileStream(file));
            Map<String, Object> dump;
            try {
                dump = Dump.file(root);
            } catch (RuntimeException error) {
                throw classified(error);
            }
            if (digests) {
                checkDigests(file, root);
            }
            return dump;
        }
    }

    /** Errors of the grammar and the end of the file are rejections; all else stays what it is. */
    private static Exception classified(RuntimeException error) {
        boolean ended = error instanceof BufferUnderflowException;
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            ended |= cause instanceof EOFException;
        }
        if (error instanceof KaitaiStream.KaitaiStructError) {
            String place = error.getMessage().substring(0, error.getMessage().indexOf(':'));
            String rule = Dump.NEWER.get(place);
            return new Rejection(rule == null ? "structure" : "unsupported", rule, error.getMessage());
        }
        if (ended) {
            return new Rejection("structure", null, error.toString());
        }
        return error;
    }

    private static void checkDigests(RandomAccessFile file, Gpack root)
            throws IOException, NoSuchAlgorithmException, Rejection {
        byte[] piece = new byte[1 << 20];
        for (Gpack.GpackSectionEntryV1 entry : root.sections()) {
            MessageDigest sum = MessageDigest.getInstance("SHA-256");
            file.seek(entry.offset());
            for (long left = entry.size(); left > 0; ) {
                int count = file.read(piece, 0, (int) Math.min(left, piece.length));
                if (count < 0) {
                    String message = "section " + entry.name() + " ends beyond the end of the file";
                    throw new Rejection("structure", "section.bounds", message);
                }
                sum.update(piece, 0, count);
                left -= count;
            }
            byte[] digest = sum.digest();
            if (!Arrays.equals(digest, entry.sha256())) {
                throw new Rejection("digest", "section.sha256", "section " + entry.name() + ": SHA-256 differs");
            }
            boolean manifest = entry.kind() == Gpack.SectionKind.MANIFEST_JSON.id();
            if (manifest && !Arrays.equals(digest, root.footer().manifestSha256())) {
                throw new Rejection("digest", "manifest.sha256", "the footer's SHA-256 of the manifest differs");
            }
        }
    }
}
