//! What Rust code made by the Kaitai compiler 0.11 needs of its runtime, for reading files of any size.
//!
//! The project's own runtime is not in the registry (the crate of that name is another project), so this one was
//! written against the generated code: shared pointers, the traits that it implements and calls, and a stream that
//! reads a file at explicit positions. It covers the features that `gpack.ksy` uses, not all of Kaitai's.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::{Rc, Weak};

pub type KResult<T> = Result<T, KError>;

/// Why a check of the grammar failed.
#[derive(Debug, Clone, PartialEq)]
pub enum ValidationKind {
    NotEqual,
    LessThan,
    GreaterThan,
    NotAnyOf,
    NotInEnum,
    Expr,
}

/// A check of the grammar failed at `src_path`.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationFailedError {
    pub kind: ValidationKind,
    pub src_path: String,
}

/// Everything that reading can fail with.
#[derive(Debug, Clone, PartialEq)]
pub enum KError {
    /// More bytes are wanted than there are.
    Eof { requested: usize, available: usize },
    ValidationFailed(ValidationFailedError),
    /// Text is not in its encoding.
    BytesDecodingError { msg: String },
    /// A number does not fit its parameter.
    CastError,
    /// The generated code asked for an object that is gone or was never read.
    MissingObject,
    /// The operating system refused to read.
    IoError { desc: String },
}

impl fmt::Display for KError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KError::Eof { requested, available } => {
                write!(out, "end of stream: {requested} bytes wanted, {available} left")
            }
            KError::ValidationFailed(failed) => write!(out, "{}: {:?}", failed.src_path, failed.kind),
            other => write!(out, "{other:?}"),
        }
    }
}

impl std::error::Error for KError {}

/// A shared object that may not have been read yet.
#[derive(Debug)]
pub struct OptRc<T>(Option<Rc<T>>);

impl<T> Default for OptRc<T> {
    fn default() -> Self {
        OptRc(None)
    }
}

impl<T> Clone for OptRc<T> {
    fn clone(&self) -> Self {
        OptRc(self.0.clone())
    }
}

impl<T> From<T> for OptRc<T> {
    fn from(value: T) -> Self {
        OptRc(Some(Rc::new(value)))
    }
}

/// The object; a panic where the generated code asks for one that it never read.
impl<T> Deref for OptRc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("an object is used before it is read")
    }
}

/// A reference to a parent, the root or the object itself, which keeps none of them alive.
pub struct SharedType<T>(RefCell<Weak<T>>);

impl<T> SharedType<T> {
    /// The object.
    pub fn get(&self) -> KResult<OptRc<T>> {
        match self.0.borrow().upgrade() {
            Some(object) => Ok(OptRc(Some(object))),
            None => Err(KError::MissingObject),
        }
    }

    /// The reference itself.
    pub fn get_value(&self) -> &RefCell<Weak<T>> {
        &self.0
    }

    /// Takes over a reference; an absent one stays absent.
    pub fn set(&self, object: KResult<OptRc<T>>) {
        let made = object.ok().and_then(|found| found.0);
        *self.0.borrow_mut() = made.map_or_else(Weak::new, |found| Rc::downgrade(&found));
    }
}

impl<T> Default for SharedType<T> {
    fn default() -> Self {
        SharedType(RefCell::new(Weak::new()))
    }
}

impl<T> Clone for SharedType<T> {
    fn clone(&self) -> Self {
        SharedType(RefCell::new(self.0.borrow().clone()))
    }
}

/// Does not follow the reference: that would go round in circles.
impl<T> fmt::Debug for SharedType<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SharedType")
    }
}

/// A type of the grammar.
pub trait KStruct: Default {
    type Root: KStruct + 'static;
    type Parent: KStruct + 'static;

    /// Reads the type's own sequence of fields.
    fn read<S: KStream>(
        self_rc: &OptRc<Self>,
        _io: &S,
        _root: SharedType<Self::Root>,
        _parent: SharedType<Self::Parent>,
    ) -> KResult<()>;

    /// Reads an object of type `T`; without a root it is its own.
    fn read_into<S: KStream, T: KStruct + 'static>(
        io: &S,
        root: Option<SharedType<T::Root>>,
        parent: Option<SharedType<T::Parent>>,
    ) -> KResult<OptRc<T>> {
        Self::read_into_with_init(io, root, parent, &|_: &mut T| Ok(()))
    }

    /// The same, after `init` has set the object's parameters.
    fn read_into_with_init<S: KStream, T: KStruct + 'static>(
        io: &S,
        root: Option<SharedType<T::Root>>,
        parent: Option<SharedType<T::Parent>>,
        init: &dyn Fn(&mut T) -> KResult<()>,
    ) -> KResult<OptRc<T>> {
        let mut made = T::default();
        init(&mut made)?;
        let object = OptRc::from(made);
        let root = root.unwrap_or_else(|| {
            let own = SharedType::default();
            if let Some(itself) = (&object as &dyn Any).downcast_ref::<OptRc<T::Root>>() {
                own.set(Ok(itself.clone()));
            }
            own
        });
        T::read(&object, io, root, parent.unwrap_or_default())?;
        Ok(object)
    }
}

/// Where bytes come from. Positions are those of the one who reads: copies of a stream move by themselves.
pub trait KStream {
    fn clone(&self) -> BytesReader;
    fn size(&self) -> usize;
    fn pos(&self) -> usize;
    fn seek(&self, position: usize) -> KResult<()>;

    /// Whether nothing is left, no bits either.
    fn is_eof(&self) -> bool;

    /// The next `count` bytes.
    fn read_bytes(&self, count: usize) -> KResult<Vec<u8>>;

    /// The next `N` bytes.
    fn read_array<const N: usize>(&self) -> KResult<[u8; N]>;

    /// The next `count` bits, from the lowest of each byte on.
    fn read_bits_int_le(&self, count: usize) -> KResult<u64>;

    fn read_u1(&self) -> KResult<u8> {
        self.read_array().map(u8::from_le_bytes)
    }
    fn read_u2le(&self) -> KResult<u16> {
        self.read_array().map(u16::from_le_bytes)
    }
    fn read_u4le(&self) -> KResult<u32> {
        self.read_array().map(u32::from_le_bytes)
    }
    fn read_u8le(&self) -> KResult<u64> {
        self.read_array().map(u64::from_le_bytes)
    }
    fn read_s1(&self) -> KResult<i8> {
        self.read_array().map(i8::from_le_bytes)
    }
    fn read_s2le(&self) -> KResult<i16> {
        self.read_array().map(i16::from_le_bytes)
    }
    fn read_s4le(&self) -> KResult<i32> {
        self.read_array().map(i32::from_le_bytes)
    }
    fn read_s8le(&self) -> KResult<i64> {
        self.read_array().map(i64::from_le_bytes)
    }
    fn read_f4le(&self) -> KResult<f32> {
        self.read_array().map(f32::from_le_bytes)
    }
    fn read_f8le(&self) -> KResult<f64> {
        self.read_array().map(f64::from_le_bytes)
    }
}

#[derive(Debug, Clone)]
enum Source {
    Bytes(Rc<[u8]>),
    File(Rc<File>),
}

/// A stream over bytes in memory or over a file, of which nothing is read but what is asked for.
#[derive(Debug, Clone)]
pub struct BytesReader {
    source: Source,
    size: usize,
    position: Cell<usize>,
    bits: Cell<u64>,
    bits_left: Cell<usize>,
}

impl BytesReader {
    /// Opens a file.
    pub fn open<P: AsRef<Path>>(path: P) -> KResult<Self> {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) = opened.map_err(|error| KError::IoError { desc: error.to_string() })?;
        let size = usize::try_from(size).map_err(|_| KError::CastError)?;
        Ok(Self::over(Source::File(Rc::new(file)), size))
    }

    fn over(source: Source, size: usize) -> Self {
        BytesReader { source, size, position: Cell::new(0), bits: Cell::new(0), bits_left: Cell::new(0) }
    }

    /// Fills `out` from the position on, after a check that there are as many bytes.
    fn fill(&self, out: &mut [u8]) -> KResult<()> {
        self.bits_left.set(0);
        let start = self.position.get();
        match &self.source {
            Source::Bytes(bytes) => out.copy_from_slice(&bytes[start..start + out.len()]),
            Source::File(file) => {
                file.read_exact_at(out, start as u64).map_err(|error| KError::IoError { desc: error.to_string() })?
            }
        }
        self.position.set(start + out.len());
        Ok(())
    }

    fn expect(&self, requested: usize) -> KResult<()> {
        let available = self.size.saturating_sub(self.position.get());
        if requested > available {
            return Err(KError::Eof { requested, available });
        }
        Ok(())
    }
}

impl Default for BytesReader {
    fn default() -> Self {
        BytesReader::from(Vec::new())
    }
}

impl From<Vec<u8>> for BytesReader {
    fn from(bytes: Vec<u8>) -> Self {
        let size = bytes.len();
        Self::over(Source::Bytes(bytes.into()), size)
    }
}

impl KStream for BytesReader {
    fn clone(&self) -> BytesReader {
        Clone::clone(self)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn pos(&self) -> usize {
        self.position.get()
    }

    fn is_eof(&self) -> bool {
        self.bits_left.get() == 0 && self.position.get() >= self.size
    }

    fn seek(&self, position: usize) -> KResult<()> {
        self.bits_left.set(0);
        self.position.set(position);
        Ok(())
    }

    fn read_bytes(&self, count: usize) -> KResult<Vec<u8>> {
        self.expect(count)?;
        let mut made = vec![0; count];
        self.fill(&mut made)?;
        Ok(made)
    }

    fn read_array<const N: usize>(&self) -> KResult<[u8; N]> {
        self.expect(N)?;
        let mut made = [0; N];
        self.fill(&mut made)?;
        Ok(made)
    }

    fn read_bits_int_le(&self, count: usize) -> KResult<u64> {
        let (mut bits, mut left) = (self.bits.get(), self.bits_left.get());
        while left < count {
            let [byte] = self.read_array()?;
            bits |= u64::from(byte) << left;
            left += 8;
        }
        self.bits.set(bits >> count);
        self.bits_left.set(left - count);
        Ok(bits & ((1 << count) - 1))
    }
}

/// Text in one of the encodings that the grammar names.
///
/// # Errors
/// The bytes are no UTF-8; ASCII is taken as a part of it.
#[allow(clippy::ptr_arg)] // the generated code converts to exactly this type
pub fn bytes_to_str(bytes: &Vec<u8>, _encoding: &str) -> KResult<String> {
    String::from_utf8(bytes.clone()).map_err(|error| KError::BytesDecodingError { msg: error.to_string() })
}

/// The bytes before the first terminator, or all.
#[allow(clippy::ptr_arg)]
pub fn bytes_terminate(bytes: &Vec<u8>, terminator: u8, include: bool) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == terminator);
    bytes[..end.map_or(bytes.len(), |found| found + usize::from(include))].to_vec()
}
