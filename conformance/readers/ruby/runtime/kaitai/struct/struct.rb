# frozen_string_literal: true

# As much of Kaitai Struct's runtime API as the compiler's Ruby output for schema/gpack.ksy calls, for machines where
# the gem `kaitai-struct` cannot be had. Written from that output and the API's published documentation.

module Kaitai
  module Struct
    VERSION = '0.11'

    class ValidationFailedError < StandardError
      attr_reader :actual, :io, :src_path

      def initialize(reason, actual, io, src_path)
        super("#{reason}, but got #{actual.inspect}")
        @actual = actual
        @io = io
        @src_path = src_path
      end
    end

    class ValidationNotEqualError < ValidationFailedError
      def initialize(expected, actual, io, src_path)
        super("expected #{expected.inspect}", actual, io, src_path)
      end
    end

    class ValidationLessThanError < ValidationFailedError
      def initialize(min, actual, io, src_path)
        super("must be at least #{min.inspect}", actual, io, src_path)
      end
    end

    class ValidationGreaterThanError < ValidationFailedError
      def initialize(max, actual, io, src_path)
        super("must be at most #{max.inspect}", actual, io, src_path)
      end
    end

    class ValidationExprError < ValidationFailedError
      def initialize(actual, io, src_path)
        super('not matching the expression', actual, io, src_path)
      end
    end

    class Struct
      attr_reader :_io, :_parent, :_root

      def initialize(io, parent = nil, root = nil)
        @_io = io
        @_parent = parent
        @_root = root || self
      end
    end

    # Reads numbers and bytes from an IO that can seek.
    class Stream
      def self.resolve_enum(names, value)
        names[value] || value
      end

      def self.bytes_terminate(bytes, terminator, include)
        at = bytes.index(terminator.chr)
        return bytes unless at

        bytes.byteslice(0, include ? at + 1 : at)
      end

      attr_reader :size

      def initialize(io)
        @io = io
        @size = io.size
        align_to_byte
      end

      def pos
        @io.pos
      end

      def eof?
        @bits_left.zero? && @io.pos >= @size
      end

      def seek(offset)
        raise ArgumentError, "cannot seek to invalid position #{offset}" if offset.negative?

        align_to_byte
        @io.seek(offset)
      end

      def read_bytes(count)
        align_to_byte
        take(count)
      end

      def substream(count)
        Stream.new(StringIO.new(read_bytes(count)))
      end

      { u1: 'C', s1: 'c', u2le: 'S<', s2le: 's<', u4le: 'L<', s4le: 'l<', u8le: 'Q<', s8le: 'q<',
        f4le: 'e', f8le: 'E' }.each do |name, format|
        width = name[1].to_i
        define_method("read_#{name}") { read_bytes(width).unpack1(format) }
      end

      # The next bits, the lowest of a byte first.
      def read_bits_int_le(count)
        while @bits_left < count
          @bits |= take(1).ord << @bits_left
          @bits_left += 8
        end
        value = @bits & ((1 << count) - 1)
        @bits >>= count
        @bits_left -= count
        value
      end

      def align_to_byte
        @bits = 0
        @bits_left = 0
      end

      private

      # Asks whether the bytes are there before it makes room for them.
      def take(count)
        left = [@size - @io.pos, 0].max
        raise EOFError, "requested #{count} bytes, but only #{left} bytes available" if count > left

        count.zero? ? String.new : @io.read(count)
      end
    end
  end
end
