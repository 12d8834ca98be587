# frozen_string_literal: true

# Reads GPACK with the parser that the Kaitai compiler makes of schema/gpack.ksy, and speaks the reader protocol.
#
#     ruby reader.rb BUILD [--level structure]
#
# BUILD holds gpack.rb (the compiled grammar) and grammar.json, which names and types every field. Level: digest;
# `--level structure` leaves the digests out.

require 'json'
require 'openssl'
require 'stringio'

begin
  require 'kaitai/struct/struct'
rescue LoadError
  $LOAD_PATH.push(File.join(__dir__, 'runtime'))
end

CHUNK = 1 << 20

# The file is not valid: the class of the fault, what is wrong, and where.
class Rejected < StandardError
  attr_reader :kind, :offset

  def initialize(kind, message, offset = nil)
    super(message)
    @kind = kind
    @offset = offset
  end
end

# What the .ksy says of types and fields: the compiled classes have values, but no list of them.
class Grammar
  attr_reader :types, :parts, :bodies

  def initialize(ksy)
    @types = ksy['types']
    @parts = ksy['instances'].transform_values { |part| part['type'] }
    kinds = ksy['enums']['section_kind'].to_h { |kind, item| [item['id'], kind.to_i] }
    cases = @types[@parts['sections']]['instances']['body']['type']['cases']
    @bodies = cases.to_h { |name, type| [kinds[name.split('::')[1]], type_name(type)] }
    @refs = {}
  end

  # Heap references of a row: the field with the offset, and what it refers to.
  def refs(type)
    @refs[type] ||= @types[type].fetch('instances', {}).each_with_object({}) do |(id, instance), found|
      match = /\Aofs_heap \+ (\w+)_offset\b/.match(instance['pos'].to_s)
      found["#{match[1]}_offset"] = id if match
    end
  end

  # Tables of rows in a section's body: the instance, and the type of a row.
  def tables(type)
    rows = @types[type].fetch('instances', {}).select { |_, item| item.key?('repeat') && item.key?('size') }
    rows.transform_values { |item| type_name(item['type']) }
  end

  # The type of the header of a section's body: the body itself, where only a blob follows; nil without one.
  def header(type)
    fields = @types[type].fetch('seq', [])
    told = fields.find { |item| item['id'] == 'header' }
    told ? type_name(told['type']) : (type unless fields.empty?)
  end

  # The field that a path like /types/gpack_header_v1/seq/2 means, and its bytes.
  def field(path)
    match = %r{\A/types/(\w+)/seq/(\d+)}.match(path)
    return [path, 0] unless match

    item = @types[match[1]]['seq'][match[2].to_i]
    ["#{match[1]}.#{item['id']}", item['type'].to_s[/\A[usf]([1248])\z/, 1].to_i]
  end

  private

  # `row(ofs_heap)` without its arguments.
  def type_name(text)
    text.split('(')[0]
  end
end

# Turns parsed objects into the protocol's dump.
class Dumper
  def initialize(grammar, stream)
    @grammar = grammar
    @stream = stream
  end

  # All fields of a record but reserved ones; what lies in the heap stands in place of its reference.
  def record(object, type)
    refs = @grammar.refs(type)
    lengths = refs.keys.map { |id| id.sub(/_offset\z/, '_length') }
    @grammar.types[type]['seq'].each_with_object({}) do |item, made|
      id = item['id']
      if refs.key?(id)
        made[refs[id]] = ref(object, id)
      elsif !lengths.include?(id) && !item['-reserved']
        made[id] = value(object.public_send(id), item)
      end
    end
  end

  # An entry of the directory with its section's header and rows, where the grammar knows them.
  def section(entry)
    made = { entry: record(entry, @grammar.parts['sections']) }
    type = @grammar.bodies[entry.kind]
    body = entry.body if type
    header = type && @grammar.header(type)
    return made unless header

    made[:header] = record(header == type ? body : body.header, header)
    @grammar.tables(type).each do |table, row|
      made[table] = body.public_send(table).map { |object| record(object, row) }
    end
    made
  end

  private

  def ref(object, id)
    @stream.seek(object.ofs_heap + object.public_send(id))
    { hex: @stream.read_bytes(object.public_send(id.sub(/_offset\z/, '_length'))).unpack1('H*') }
  end

  # A field's value as JSON: 64-bit numbers as text, flags as a number, bytes as hex.
  def value(value, item)
    case value
    when Array then value.map { |element| value(element, item) }
    when String then item['type'] ? value : value.unpack1('H*')
    when Integer then %w[u8 s8].include?(item['type']) ? value.to_s : value
    else value.as_int
    end
  end
end

# One file after the other.
class Reader
  attr_reader :level

  def initialize(build, level)
    @level = level
    require File.join(File.expand_path(build), 'gpack')
    @grammar = Grammar.new(JSON.parse(File.read(File.join(build, 'grammar.json'), encoding: 'UTF-8')))
  end

  # The dump of a valid file; raises Rejected.
  def read(path)
    File.open(path, 'rb') do |file|
      stream = Kaitai::Struct::Stream.new(file)
      root = Gpack.new(stream)
      dump = guarded(stream) { parse(root, stream) }
      check_digests(root, file) if level == 'digest'
      dump
    end
  end

  private

  def parse(root, stream)
    dumper = Dumper.new(@grammar, stream)
    header = dumper.record(root.header, @grammar.parts['header'])
    footer = dumper.record(root.footer, @grammar.parts['footer'])
    check_bounds(root, stream.size)
    { header: header, footer: footer, sections: root.sections.map { |entry| dumper.section(entry) } }
  end

  def check_bounds(root, size)
    stated = root.header.total_file_size
    raise Rejected.new('structure', "the header says #{stated} bytes, the file has #{size}", size) if stated != size

    root.sections.each do |entry|
      last = entry.offset + entry.size
      raise Rejected.new('structure', "#{entry.name} ends at #{last}, the file at #{size}", entry.offset) if last > size
    end
  end

  # What the parser raises is told with its place in the file.
  def guarded(stream)
    yield
  rescue Kaitai::Struct::ValidationFailedError => e
    raise invalid(e, stream)
  rescue EOFError, ArgumentError, Errno::EINVAL => e
    raise Rejected.new('structure', "the file ends early: #{e.message}", stream.pos)
  rescue EncodingError => e
    raise Rejected.new('structure', "a text is not valid: #{e.message}", stream.pos)
  end

  # What a failed `valid:` means: a version that is not known is no damage, all else is.
  def invalid(error, stream)
    field, width = @grammar.field(error.src_path)
    base = error.io.equal?(stream) ? 0 : stream.pos - error.io.size # a row has a stream of its own
    newer = field.end_with?('_header_v1.min_reader_version', '_header_v1.version') && error.actual > 1
    Rejected.new(newer ? 'unsupported' : 'structure', "#{field}: #{error.message}", base + error.io.pos - width)
  end

  def check_digests(root, file)
    root.sections.each do |entry|
      next if sha256(file, entry.offset, entry.size) == entry.sha256

      raise Rejected.new('digest', "#{entry.name}: the SHA-256 is not that of the directory", entry.offset)
    end
    offset = root.header.manifest_offset
    return if sha256(file, offset, root.header.manifest_size) == root.footer.manifest_sha256

    raise Rejected.new('digest', "the manifest's SHA-256 is not that of the footer", offset)
  end

  def sha256(file, start, length)
    digest = OpenSSL::Digest.new('SHA256')
    buffer = String.new(capacity: CHUNK)
    file.seek(start)
    while length.positive?
      raise Rejected.new('structure', 'the file ends early', start) unless file.read([length, CHUNK].min, buffer)

      digest.update(buffer)
      length -= buffer.bytesize
    end
    digest.digest
  end
end

# The protocol: one start, then a result to every run, until stop.
def main(build, *options)
  reader = Reader.new(build, options == ['--level', 'structure'] ? 'structure' : 'digest')
  $stdout.sync = true
  say = ->(answer) { $stdout.puts(JSON.generate(answer)) }
  say.({ type: 'start', protocol: 1, name: 'gpack-kaitai-ruby', language: 'ruby',
         version: Kaitai::Struct::VERSION, level: reader.level })
  $stdin.each_line do |line|
    order = JSON.parse(line)
    break if order['type'] == 'stop'

    say.({ type: 'result', seq: order['seq'] }.merge(answer(reader, order['path'])))
  end
end

def answer(reader, path)
  { verdict: 'accept', dump: reader.read(path) }
rescue Rejected => e
  { verdict: 'reject', class: e.kind, message: e.message, offset: e.offset }
end

main(*ARGV)
