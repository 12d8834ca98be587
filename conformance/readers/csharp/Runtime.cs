// What C# code made by the Kaitai compiler 0.11 needs of its runtime, for reading files of any size.
//
// Kaitai's own runtime is in a registry that the builds here do not ask, so this one was written against the generated
// code. It covers the features that gpack.ksy uses, not all of Kaitai's.

using System;
using System.IO;

namespace Kaitai
{
    /// <summary>The base of the classes that the compiler makes.</summary>
    public abstract class KaitaiStruct
    {
        protected KaitaiStream m_io;

        protected KaitaiStruct(KaitaiStream io)
        {
            m_io = io;
        }

        public KaitaiStream M_Io
        {
            get { return m_io; }
        }
    }

    /// <summary>A stream over a file or over bytes in memory; nothing is read but what is asked for.</summary>
    public class KaitaiStream : IDisposable
    {
        private readonly Stream stream;
        private ulong bits;
        private int bitsLeft;

        public KaitaiStream(Stream stream)
        {
            this.stream = stream;
        }

        public KaitaiStream(string path) : this(File.OpenRead(path))
        {
        }

        public KaitaiStream(byte[] bytes) : this(new MemoryStream(bytes, false))
        {
        }

        public long Pos
        {
            get { return stream.Position; }
        }

        public long Size
        {
            get { return stream.Length; }
        }

        public bool IsEof
        {
            get { return bitsLeft == 0 && stream.Position >= stream.Length; }
        }

        public void Dispose()
        {
            stream.Dispose();
        }

        public void Seek(long position)
        {
            AlignToByte();
            if (position < 0)
            {
                throw new EndOfStreamException("there is no place " + position);
            }
            stream.Position = position;
        }

        public void Seek(ulong position)
        {
            Seek(position > long.MaxValue ? -1 : (long)position);
        }

        public void AlignToByte()
        {
            bitsLeft = 0;
            bits = 0;
        }

        /// <summary>The next bytes; memory is taken for no more than there are.</summary>
        public byte[] ReadBytes(long count)
        {
            AlignToByte();
            if (count < 0 || count > stream.Length - stream.Position)
            {
                string place = stream.Position + " of " + stream.Length;
                throw new EndOfStreamException("end of stream: " + count + " bytes wanted at " + place);
            }
            var made = new byte[count];
            for (int done = 0; done < made.Length;)
            {
                int got = stream.Read(made, done, made.Length - done);
                if (got == 0)
                {
                    throw new EndOfStreamException("the stream became shorter");
                }
                done += got;
            }
            return made;
        }

        public byte[] ReadBytes(ulong count)
        {
            return ReadBytes(count > long.MaxValue ? -1 : (long)count);
        }

        public byte ReadU1()
        {
            return (byte)ReadLittle(1);
        }

        public ushort ReadU2le()
        {
            return (ushort)ReadLittle(2);
        }

        public uint ReadU4le()
        {
            return (uint)ReadLittle(4);
        }

        public ulong ReadU8le()
        {
            return ReadLittle(8);
        }

        public sbyte ReadS1()
        {
            return (sbyte)ReadLittle(1);
        }

        public short ReadS2le()
        {
            return (short)ReadLittle(2);
        }

        public int ReadS4le()
        {
            return (int)ReadLittle(4);
        }

        public long ReadS8le()
        {
            return (long)ReadLittle(8);
        }

        /// <summary>The next bits, from the lowest of each byte on.</summary>
        public ulong ReadBitsIntLe(int count)
        {
            ulong found = bits;
            int left = bitsLeft;
            for (; left < count; left += 8)
            {
                found |= (ulong)ReadLittle(1) << left;
            }
            bits = found >> count;
            bitsLeft = left - count;
            return found & ((1UL << count) - 1);
        }

        /// <summary>The bytes before the first terminator, or all.</summary>
        public static byte[] BytesTerminate(byte[] bytes, byte terminator, bool include)
        {
            int end = Array.IndexOf(bytes, terminator);
            if (end < 0)
            {
                return bytes;
            }
            var made = new byte[end + (include ? 1 : 0)];
            Array.Copy(bytes, made, made.Length);
            return made;
        }

        /// <summary>The remainder, never negative.</summary>
        public static long Mod(long dividend, long divisor)
        {
            long rest = dividend % divisor;
            return rest < 0 ? rest + divisor : rest;
        }

        public static ulong Mod(ulong dividend, ulong divisor)
        {
            return dividend % divisor;
        }

        /// <summary>Which of two byte strings comes first; 0 where they are equal.</summary>
        public static int ByteArrayCompare(byte[] left, byte[] right)
        {
            for (int i = 0; i < Math.Min(left.Length, right.Length); i++)
            {
                if (left[i] != right[i])
                {
                    return left[i] - right[i];
                }
            }
            return left.Length - right.Length;
        }

        private ulong ReadLittle(int count)
        {
            byte[] bytes = ReadBytes(count);
            ulong made = 0;
            for (int i = count - 1; i >= 0; i--)
            {
                made = made << 8 | bytes[i];
            }
            return made;
        }
    }

    /// <summary>A check of the grammar failed at <c>SrcPath</c>.</summary>
    public class ValidationFailedError : Exception
    {
        public string SrcPath { get; private set; }

        public ValidationFailedError(string what, string srcPath) : base(srcPath + ": " + what)
        {
            SrcPath = srcPath;
        }
    }

    public class ValidationNotEqualError : ValidationFailedError
    {
        public ValidationNotEqualError(object expected, object actual, KaitaiStream io, string srcPath)
            : base(actual + " is not " + expected, srcPath)
        {
        }
    }

    public class ValidationLessThanError : ValidationFailedError
    {
        public ValidationLessThanError(object least, object actual, KaitaiStream io, string srcPath)
            : base(actual + " is less than " + least, srcPath)
        {
        }
    }

    public class ValidationGreaterThanError : ValidationFailedError
    {
        public ValidationGreaterThanError(object most, object actual, KaitaiStream io, string srcPath)
            : base(actual + " is more than " + most, srcPath)
        {
        }
    }

    public class ValidationExprError : ValidationFailedError
    {
        public ValidationExprError(object actual, KaitaiStream io, string srcPath)
            : base(actual + " is not allowed", srcPath)
        {
        }
    }
}
