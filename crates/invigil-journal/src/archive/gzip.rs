//! The gzip container: a fixed header with a seal, one deflate stream, the trailer, nothing behind it.
//!
//! Deflate can spell the same content in many ways. The seal, a SHA-256 of all bytes behind the header in an extra field
//! that every other reader skips, is what makes a flipped bit visible that happens to unpack to the same content.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crc32fast::Hasher as Crc;
use invigil_schema::Digest;
use miniz_oxide::deflate::core::{CompressorOxide, create_comp_flags_from_zip_params};
use miniz_oxide::deflate::stream::deflate;
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use sha2::{Digest as _, Sha256};

use super::{ArchiveError, Limits};

/// Everything in front of the seal: deflate, an extra field and nothing else, no time, no system; the field's length,
/// its name `IV`, the seal's length.
const PREAMBLE: [u8; 16] = [
    0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 36, 0, b'I', b'V', 32, 0,
];
const SEAL: usize = 32;
const TRAILER: usize = 8;
const CHUNK: usize = 64 * 1024;
/// How hard it tries: the digests in a journal do not shrink, so more takes five times as long and gains 5 %. Part of
/// the format as far as equal bytes are promised.
const LEVEL: i32 = 1;

/// Compresses into a file.
pub(crate) struct Encoder<W> {
    out: W,
    deflater: Box<CompressorOxide>,
    buffer: Box<[u8]>,
    crc: Crc,
    seal: Sha256,
    decoded: u64,
    encoded: u64,
}

impl<W: Write + Seek> Encoder<W> {
    /// Starts a stream, with an empty seal.
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&PREAMBLE)?;
        out.write_all(&[0; SEAL])?;
        let flags = create_comp_flags_from_zip_params(LEVEL, -15, 0);
        Ok(Encoder {
            out,
            deflater: Box::new(CompressorOxide::new(flags)),
            buffer: vec![0; CHUNK].into(),
            crc: Crc::new(),
            seal: Sha256::new(),
            decoded: 0,
            encoded: (PREAMBLE.len() + SEAL) as u64,
        })
    }

    /// How large the file is so far.
    pub(crate) fn encoded(&self) -> u64 {
        self.encoded
    }

    /// Compresses more.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.decoded += bytes.len() as u64;
        while !bytes.is_empty() {
            bytes = &bytes[self.step(bytes, MZFlush::None)?.0..];
        }
        Ok(())
    }

    /// Ends the stream, puts the seal in, and gives the file back with its size.
    pub(crate) fn finish(mut self) -> io::Result<(W, u64)> {
        while !self.step(&[], MZFlush::Finish)?.1 {}
        let mut trailer = [0; TRAILER];
        trailer[..4].copy_from_slice(&self.crc.clone().finalize().to_le_bytes());
        trailer[4..].copy_from_slice(&(self.decoded as u32).to_le_bytes());
        self.put(&trailer)?;
        self.out.seek(SeekFrom::Start(PREAMBLE.len() as u64))?;
        self.out.write_all(&self.seal.finalize())?;
        Ok((self.out, self.encoded))
    }

    /// How many bytes were taken, and whether the stream has ended.
    fn step(&mut self, bytes: &[u8], flush: MZFlush) -> io::Result<(usize, bool)> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = deflate(&mut self.deflater, bytes, &mut buffer, flush);
        let written = self.put(&buffer[..result.bytes_written]);
        self.buffer = buffer;
        written?;
        match result.status {
            Ok(status) => Ok((result.bytes_consumed, status == MZStatus::StreamEnd)),
            Err(error) => Err(io::Error::other(format!("deflate: {error:?}"))),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seal.update(bytes);
        self.encoded += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// Decompresses a file, and refuses what [`Encoder`] would not write.
pub(crate) struct Decoder<R> {
    source: Source<R>,
    inflater: Box<InflateState>,
    crc: Crc,
    decoded: u64,
    limit: u64,
    ended: bool,
}

/// What reading a file to its end has shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) sha256: Digest,
    pub(crate) encoded: u64,
    pub(crate) decoded: u64,
}

impl<R: Read> Decoder<R> {
    /// Reads the header.
    pub(crate) fn new(file: R, limits: &Limits) -> Result<Self, Fault> {
        let mut source = Source {
            file,
            buffer: vec![0; CHUNK].into(),
            start: 0,
            end: 0,
            read: 0,
            limit: limits.source,
            whole: Sha256::new(),
            seal: None,
            claimed: [0; SEAL],
        };
        source.header()?;
        Ok(Decoder {
            source,
            inflater: InflateState::new_boxed(DataFormat::Raw),
            crc: Crc::new(),
            decoded: 0,
            limit: limits.decoded,
            ended: false,
        })
    }

    /// How many bytes were unpacked so far.
    pub(crate) fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Unpacks more; 0 at the end of the stream, after its trailer was checked.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        while !self.ended {
            let input = self.source.fill()?;
            let at_end = input.is_empty();
            let result = inflate(&mut self.inflater, input, out, MZFlush::None);
            self.source.consume(result.bytes_consumed);
            let written = result.bytes_written;
            self.crc.update(&out[..written]);
            self.decoded += written as u64;
            if self.decoded > self.limit {
                let limit = self.limit;
                return Err(ArchiveError::DecodedTooLarge { limit }.into());
            }
            match result.status {
                Ok(MZStatus::StreamEnd) => {
                    self.ended = true;
                    self.trailer()?;
                }
                Ok(MZStatus::Ok) | Err(MZError::Buf) => {}
                Ok(MZStatus::NeedDict) | Err(_) => return Err(ArchiveError::Deflate.into()),
            }
            if written > 0 {
                return Ok(written);
            }
            if at_end && !self.ended {
                return Err(ArchiveError::Truncated.into());
            }
        }
        Ok(0)
    }

    fn trailer(&mut self) -> Result<(), Fault> {
        let mut trailer = [0; TRAILER];
        self.source.exact(&mut trailer)?;
        let [c0, c1, c2, c3, l0, l1, l2, l3] = trailer;
        if u32::from_le_bytes([c0, c1, c2, c3]) != self.crc.clone().finalize() {
            return Err(ArchiveError::Crc.into());
        }
        if u32::from_le_bytes([l0, l1, l2, l3]) != self.decoded as u32 {
            return Err(ArchiveError::GzipLength.into());
        }
        match self.source.fill()?.is_empty() {
            true => Ok(()),
            false => Err(ArchiveError::TrailingData.into()),
        }
    }

    /// After the end: compares the seal, and says what was read.
    pub(crate) fn finish(self) -> Result<Sums, ArchiveError> {
        let source = self.source;
        match source.seal {
            Some(seal) if self.ended && seal.clone().finalize()[..] == source.claimed => {}
            _ => return Err(ArchiveError::Seal),
        }
        Ok(Sums {
            sha256: Digest::from_bytes(source.whole.finalize().into()),
            encoded: source.read,
            decoded: self.decoded,
        })
    }
}

/// The file, hashed as it is read.
struct Source<R> {
    file: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    read: u64,
    limit: u64,
    whole: Sha256,
    /// Runs from the end of the header on.
    seal: Option<Sha256>,
    claimed: [u8; SEAL],
}

/// Either the archive is at fault or the medium.
#[derive(Debug)]
pub(crate) enum Fault {
    Archive(ArchiveError),
    Medium(io::Error),
}

impl From<ArchiveError> for Fault {
    fn from(error: ArchiveError) -> Self {
        Fault::Archive(error)
    }
}

impl<R: Read> Source<R> {
    /// What is there and not yet consumed; empty at the end of the file.
    fn fill(&mut self) -> Result<&[u8], Fault> {
        if self.start == self.end {
            let read = loop {
                match self.file.read(&mut self.buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.map_err(Fault::Medium)?,
                }
            };
            (self.start, self.end) = (0, read);
            self.read += read as u64;
            if self.read > self.limit {
                let limit = self.limit;
                return Err(ArchiveError::SourceTooLarge { limit }.into());
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        let consumed = &self.buffer[self.start..self.start + count];
        self.whole.update(consumed);
        if let Some(seal) = &mut self.seal {
            seal.update(consumed);
        }
        self.start += count;
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        let mut filled = 0;
        while filled < out.len() {
            let input = self.fill()?;
            if input.is_empty() {
                return Err(ArchiveError::Truncated.into());
            }
            let count = input.len().min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&input[..count]);
            self.consume(count);
            filled += count;
        }
        Ok(())
    }

    fn header(&mut self) -> Result<(), Fault> {
        let mut preamble = [0; PREAMBLE.len()];
        self.exact(&mut preamble)?;
        let what = match preamble {
            PREAMBLE => None,
            [0x1f, 0x8b, ..] => Some("its gzip header is not the one that Invigil writes"),
            _ => Some("it is not a gzip file"),
        };
        if let Some(what) = what {
            return Err(ArchiveError::GzipHeader(what).into());
        }
        let mut claimed = [0; SEAL];
        self.exact(&mut claimed)?;
        self.claimed = claimed;
        self.seal = Some(Sha256::new());
        Ok(())
    }
}
