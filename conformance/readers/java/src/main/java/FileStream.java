import io.kaitai.struct.RandomAccessFileKaitaiStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;

/** A stream over a file of any size that refuses to read past its end before it reserves the memory. */
final class FileStream extends RandomAccessFileKaitaiStream {
    FileStream(RandomAccessFile file) {
        super(file);
    }

    @Override
    protected byte[] readBytesNotAligned(long count) {
        try {
            if (count > raf.length() - raf.getFilePointer()) {
                throw new EOFException(count + " bytes wanted at " + raf.getFilePointer() + " of " + raf.length());
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return super.readBytesNotAligned(count);
    }
}
