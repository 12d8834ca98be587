//! A reader of GPACK over the Rust code that the Kaitai compiler makes of schema/gpack.ksy.
//!
//! It speaks the reader protocol of spec/conformance.md: one JSON object a line. `--level structure` leaves the digests
//! out, which cost a pass over the file.

mod dump;
#[allow(clippy::all, dead_code, unused)]
mod gpack;

use gpack::{Gpack, Gpack_GpackSectionEntryV1, Gpack_SectionKind};
use kaitai::{BytesReader, KError, KResult, KStruct};
use serde_json::{json, Value};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};

/// What is wrong with a file: class, rule and message.
struct Rejection(&'static str, Option<&'static str>, String);

/// Accepted with its dump, or rejected; the outer error is a fault of this program or of the disk.
type Verdict = Result<Value, Rejection>;

fn main() -> Result<(), Box<dyn Error>> {
    let structure = std::env::args().skip(1).eq(["--level", "structure"].map(String::from));
    let level = if structure { "structure" } else { "digest" };
    let mut out = io::stdout().lock();
    let start = json!({
        "type": "start", "protocol": 1, "name": "gpack-kaitai-rust", "language": "rust", "version": "1", "level": level
    });
    writeln!(out, "{start}")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?)?;
        if asked["type"] == "stop" {
            break;
        }
        let path = asked["path"].as_str().ok_or("a question without a path")?;
        let mut answer = json!({ "type": "result", "seq": asked["seq"] });
        match read(path, !structure)? {
            Ok(dump) => {
                answer["verdict"] = "accept".into();
                answer["dump"] = dump;
            }
            Err(Rejection(class, rule, message)) => {
                answer["verdict"] = "reject".into();
                answer["class"] = class.into();
                answer["message"] = message.into();
                if let Some(rule) = rule {
                    answer["rule"] = rule.into();
                }
            }
        }
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Parses a file through reads at positions; no blob is read but to hash it, in pieces.
fn read(path: &str, digests: bool) -> Result<Verdict, Box<dyn Error>> {
    let parsed = BytesReader::open(path).and_then(|io| {
        let root = Gpack::read_into::<_, Gpack>(&io, None, None)?;
        let dump = dump::file(&root)?;
        Ok((root, dump))
    });
    match parsed {
        Ok((root, dump)) if digests => Ok(wrong_digest(path, &root)?.map_or(Ok(dump), Err)),
        Ok((_, dump)) => Ok(Ok(dump)),
        Err(error @ (KError::IoError { .. } | KError::MissingObject)) => Err(error.into()),
        Err(error) => {
            let rule = match &error {
                KError::ValidationFailed(failed) => dump::newer(&failed.src_path),
                _ => None,
            };
            let class = if rule.is_some() { "unsupported" } else { "structure" };
            Ok(Err(Rejection(class, rule, error.to_string())))
        }
    }
}

fn wrong_digest(path: &str, root: &Gpack) -> Result<Option<Rejection>, Box<dyn Error>> {
    let mut file = File::open(path)?;
    for entry in root.sections()?.iter() {
        let Some(digest) = digest_of(&mut file, entry)? else {
            let message = format!("section {} ends beyond the end of the file", entry.name());
            return Ok(Some(Rejection("structure", Some("section.bounds"), message)));
        };
        if digest != **entry.sha256() {
            let message = format!("section {}: SHA-256 differs", entry.name());
            return Ok(Some(Rejection("digest", Some("section.sha256"), message)));
        }
        if is_manifest(entry)? && digest != **root.footer()?.manifest_sha256() {
            let message = "the footer's SHA-256 of the manifest differs".to_string();
            return Ok(Some(Rejection("digest", Some("manifest.sha256"), message)));
        }
    }
    Ok(None)
}

fn is_manifest(entry: &Gpack_GpackSectionEntryV1) -> KResult<bool> {
    Ok(*entry.kind_enum()? == Gpack_SectionKind::ManifestJson)
}

/// SHA-256 of a section; None where the file ends before it.
fn digest_of(file: &mut File, entry: &Gpack_GpackSectionEntryV1) -> io::Result<Option<Vec<u8>>> {
    file.seek(SeekFrom::Start(*entry.offset()))?;
    let mut sum = Sha256::new();
    let copied = io::copy(&mut file.take(*entry.size()), &mut sum)?;
    Ok((copied == *entry.size()).then(|| sum.finalize().to_vec()))
}
