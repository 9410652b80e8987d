//! Checking an archive: one pass, nothing is repaired, nothing is skipped, memory does not grow with it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use invigil_schema::{Digest, Envelope, Event, JOURNAL_FORMAT, RunId};
use sha2::{Digest as _, Sha256};

use super::form::{Kind, Splitter, check, check_line};
use super::gzip::{Decoder, Fault, Sums};
use super::manifest::MANIFEST;
use super::tar::{self, BLOCK, Header};
use super::{ArchiveError, Derived, Entry, Limits, Manifest, Member, Views};
use crate::Record;
use crate::chain::{Flaw, MAX_RECORD, Position};

/// What an archive is checked against besides itself.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The digest that the file must have. Compared before anything in the file is looked at.
    pub sha256: Option<Digest>,
    /// The run that it must be of.
    pub run_id: Option<RunId>,
    /// How large things may be.
    pub limits: Limits,
}

/// What was checked and found whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// What is in it.
    pub manifest: Manifest,
    /// The digest of the file.
    pub sha256: Digest,
    /// Its size.
    pub bytes: u64,
    /// The size of everything in it.
    pub decoded: u64,
    /// Whether the views were computed again.
    pub recomputed: bool,
}

/// Checks an archive. With `views` every derived member is computed again from the journal inside and compared;
/// without, only its digest and form are checked.
pub fn verify(
    path: &Path,
    expected: &Expected,
    views: Option<&mut dyn Views>,
) -> Result<Verified, ArchiveError> {
    let medium = |source| ArchiveError::Io {
        path: path.to_owned(),
        source,
    };
    let flat = |fault| match fault {
        Fault::Archive(error) => error,
        Fault::Medium(source) => medium(source),
    };
    if !path.metadata().map_err(medium)?.is_file() {
        return Err(medium(io::Error::other("it is not a plain file")));
    }
    let mut file = File::open(path).map_err(medium)?;
    if file.metadata().map_err(medium)?.len() > expected.limits.source {
        let limit = expected.limits.source;
        return Err(ArchiveError::SourceTooLarge { limit });
    }
    if let Some(sha256) = expected.sha256 {
        same_file(sha256, digest_of(&mut file).map_err(medium)?)?;
    }
    let (manifest, sums, recomputed) = read(file, expected, views).map_err(flat)?;
    if let Some(sha256) = expected.sha256 {
        // The file may have been changed since.
        same_file(sha256, sums.sha256)?;
    }
    Ok(Verified {
        manifest,
        sha256: sums.sha256,
        bytes: sums.encoded,
        decoded: sums.decoded,
        recomputed,
    })
}

fn digest_of(file: &mut File) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(Digest::from_bytes(hash.finalize().into()))
}

fn same_file(expected: Digest, found: Digest) -> Result<(), ArchiveError> {
    match expected == found {
        true => Ok(()),
        false => Err(ArchiveError::FileDigest { expected, found }),
    }
}

fn read(
    file: impl Read,
    expected: &Expected,
    views: Option<&mut dyn Views>,
) -> Result<(Manifest, Sums, bool), Fault> {
    let mut walker = Walker {
        decoder: Decoder::new(file, &expected.limits)?,
        limits: expected.limits,
    };
    let manifest = walker.manifest()?;
    if let Some(wanted) = &expected.run_id
        && *wanted != manifest.run_id
    {
        let (expected, found) = (wanted.clone(), manifest.run_id);
        return Err(ArchiveError::WrongRun { expected, found }.into());
    }
    let mut journal = JournalCheck::new(&manifest, views);
    let mut seen = vec![MANIFEST.to_owned()];
    for entry in &manifest.members {
        walker.member(entry, &manifest, &seen, &mut journal)?;
        seen.push(entry.path.clone());
    }
    if let Some(header) = walker.header()? {
        return Err(match seen.contains(&header.name) {
            true => ArchiveError::DuplicateMember(header.name),
            false => ArchiveError::ExtraMember(header.name),
        }
        .into());
    }
    let sums = walker.decoder.finish()?;
    let recomputed = journal.compare_views(&manifest)?;
    Ok((manifest, sums, recomputed))
}

/// Goes through a tar archive, member by member.
struct Walker<R> {
    decoder: Decoder<R>,
    limits: Limits,
}

impl<R: Read> Walker<R> {
    /// The next block; nothing if the stream ends here.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Fault> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.decoder.read(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(ArchiveError::MissingTarEnd("it is cut off in a block").into()),
                read => filled += read,
            }
        }
        Ok(Some(block))
    }

    /// The next header; nothing behind the last member, after the end was checked.
    fn header(&mut self) -> Result<Option<Header>, Fault> {
        let offset = self.decoder.decoded();
        let missing = |what| Err(ArchiveError::MissingTarEnd(what).into());
        match self.block()? {
            None => missing("it stops behind a member"),
            Some(block) if block != [0; BLOCK] => {
                let header = Header::read(block, offset)?;
                // Said now, before so much is unpacked.
                if header.size > self.limits.decoded.saturating_sub(self.decoder.decoded()) {
                    let limit = self.limits.decoded;
                    return Err(ArchiveError::DecodedTooLarge { limit }.into());
                }
                Ok(Some(header))
            }
            Some(_) => match self.block()? {
                None => missing("there is one block of zeros instead of two"),
                Some(block) if block != [0; BLOCK] => missing("a block of zeros stands alone"),
                Some(_) => match self.decoder.read(&mut [0; 1])? {
                    0 => Ok(None),
                    _ => Err(ArchiveError::DataAfterTarEnd.into()),
                },
            },
        }
    }

    /// The bytes of a member, in pieces, and then whether its padding is zero.
    fn content(&mut self, size: u64, mut each: impl FnMut(&[u8])) -> Result<bool, Fault> {
        let mut buffer = vec![0; 64 * 1024];
        let mut left = size;
        while left > 0 {
            let most = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.decoder.read(&mut buffer[..most])?;
            if read == 0 {
                return Err(ArchiveError::MissingTarEnd("it is cut off in a member").into());
            }
            each(&buffer[..read]);
            left -= read as u64;
        }
        let mut zero = true;
        let mut padding = tar::padding(size);
        while padding > 0 {
            let read = self.decoder.read(&mut buffer[..padding])?;
            if read == 0 {
                return Err(ArchiveError::MissingTarEnd("it is cut off in the padding").into());
            }
            zero &= buffer[..read].iter().all(|&byte| byte == 0);
            padding -= read;
        }
        Ok(zero)
    }

    fn manifest(&mut self) -> Result<Manifest, Fault> {
        let Some(header) = self.header()? else {
            return Err(ArchiveError::MissingMember(MANIFEST.to_owned()).into());
        };
        if header.name != MANIFEST {
            let listed = Member::from_path(&header.name).is_some();
            return Err(self.misplaced(MANIFEST, header, listed).into());
        }
        header.check(None)?;
        self.limit_document(MANIFEST, header.size)?;
        let mut bytes = Vec::new();
        if !self.content(header.size, |piece| bytes.extend_from_slice(piece))? {
            let what = "its padding is not zero".to_owned();
            return Err(ArchiveError::Manifest(what).into());
        }
        Ok(Manifest::decode(&bytes)?)
    }

    fn limit_document(&self, member: &str, size: u64) -> Result<(), ArchiveError> {
        let limit = self.limits.document;
        let member = member.to_owned();
        match size > limit {
            true => Err(ArchiveError::DocumentTooLarge { member, limit }),
            false => Ok(()),
        }
    }

    /// Which error it is that another member stands where `expected` belongs.
    fn misplaced(&mut self, expected: &str, found: Header, listed: bool) -> ArchiveError {
        if !listed {
            return ArchiveError::ExtraMember(found.name);
        }
        let expected = expected.to_owned();
        let name = found.name.clone();
        let mut behind = found;
        // Whatever else is wrong with the rest does not matter any more.
        loop {
            match self
                .content(behind.size, |_| ())
                .and_then(|_| self.header())
            {
                Ok(Some(header)) if header.name == expected => {
                    let found = name;
                    return ArchiveError::OutOfOrder { expected, found };
                }
                Ok(Some(header)) => behind = header,
                _ => return ArchiveError::MissingMember(expected),
            }
        }
    }

    fn member(
        &mut self,
        entry: &Entry,
        manifest: &Manifest,
        seen: &[String],
        journal: &mut JournalCheck<'_>,
    ) -> Result<(), Fault> {
        let Some(header) = self.header()? else {
            return Err(ArchiveError::MissingMember(entry.path.clone()).into());
        };
        if seen.contains(&header.name) {
            return Err(ArchiveError::DuplicateMember(header.name).into());
        }
        let Some(member) = Member::from_path(&entry.path).filter(|_| header.name == entry.path)
        else {
            let listed = manifest.members.iter().any(|e| e.path == header.name);
            return Err(self.misplaced(&entry.path, header, listed).into());
        };
        header.check(Some(member))?;
        if header.size != entry.size {
            return Err(ArchiveError::MemberSize {
                member,
                listed: entry.size,
                found: header.size,
            }
            .into());
        }
        let mut content = match (member, member.kind()) {
            (Member::Journal, _) => Content::Journal(journal),
            (_, Kind::Lines) => Content::Lines {
                splitter: Splitter::new(member.path(), self.limits.document),
                flaw: None,
            },
            (_, Kind::Document) => {
                self.limit_document(member.path(), header.size)?;
                Content::Document(Vec::new())
            }
            (_, Kind::Opaque) => Content::Opaque,
        };
        let mut hash = Sha256::new();
        let zero = self.content(header.size, |piece| {
            hash.update(piece);
            content.feed(member, piece);
        })?;
        let found = Digest::from_bytes(hash.finalize().into());
        if found != entry.sha256 {
            return Err(ArchiveError::MemberChanged {
                member,
                listed: entry.sha256,
                found,
            }
            .into());
        }
        if !zero {
            return Err(ArchiveError::Padding { member }.into());
        }
        Ok(content.finish(member, manifest)?)
    }
}

/// What is to be checked of the bytes of a member. A flaw is kept until the digest is known: that a member was changed
/// says more than what the change broke.
enum Content<'c, 'v> {
    Opaque,
    Document(Vec<u8>),
    Lines {
        splitter: Splitter,
        flaw: Option<ArchiveError>,
    },
    Journal(&'c mut JournalCheck<'v>),
}

impl Content<'_, '_> {
    fn feed(&mut self, member: Member, piece: &[u8]) {
        match self {
            Content::Opaque => {}
            Content::Document(bytes) => bytes.extend_from_slice(piece),
            Content::Journal(journal) => journal.feed(piece),
            Content::Lines { splitter, flaw } if flaw.is_none() => {
                let each = |number, line: &[u8]| check_line(member.path(), number, line);
                *flaw = splitter.feed(piece, each).err();
            }
            Content::Lines { .. } => {}
        }
    }

    fn finish(self, member: Member, manifest: &Manifest) -> Result<(), ArchiveError> {
        match self {
            Content::Opaque => Ok(()),
            Content::Document(bytes) => check(member.path(), 1, &bytes),
            Content::Journal(journal) => journal.finish(manifest),
            Content::Lines { splitter, flaw } => flaw.map_or_else(|| splitter.finish(), Err),
        }
    }
}

/// Checks the chain, and hands each record on to the views.
struct JournalCheck<'v> {
    splitter: Splitter,
    chain: Chain<'v>,
    flaw: Option<ArchiveError>,
}

struct Chain<'v> {
    position: Position,
    run_id: RunId,
    views: Option<&'v mut dyn Views>,
    derived: Derived,
}

impl<'v> JournalCheck<'v> {
    fn new(manifest: &Manifest, views: Option<&'v mut dyn Views>) -> Self {
        JournalCheck {
            splitter: Splitter::new(Member::Journal.path(), MAX_RECORD as u64),
            chain: Chain {
                position: Position::default(),
                run_id: manifest.run_id.clone(),
                views,
                derived: Derived::digests(),
            },
            flaw: None,
        }
    }

    fn feed(&mut self, piece: &[u8]) {
        if self.flaw.is_some() {
            return;
        }
        let chain = &mut self.chain;
        let fed = self.splitter.feed(piece, |_, line| chain.record(line));
        self.flaw = fed.err().map(|error| match error {
            ArchiveError::DocumentTooLarge { ref member, .. }
                if *member == Member::Journal.path() =>
            {
                ArchiveError::chain(self.chain.position.count, Flaw::TooLong)
            }
            other => other,
        });
    }

    fn finish(&mut self, manifest: &Manifest) -> Result<(), ArchiveError> {
        if let Some(flaw) = self.flaw.take() {
            return Err(flaw);
        }
        let next = self.chain.position.count;
        if self.splitter.unfinished() > 0 {
            return Err(ArchiveError::chain(next, Flaw::Unterminated));
        }
        let Some(head) = self.chain.position.head() else {
            return Err(ArchiveError::chain(0, Flaw::Absent));
        };
        let (listed, found) = (manifest.head, head.into());
        match listed == found {
            true => Ok(()),
            false => Err(ArchiveError::Head { listed, found }),
        }
    }

    /// Whether the views were computed again; they are as they stand in the archive then.
    fn compare_views(self, manifest: &Manifest) -> Result<bool, ArchiveError> {
        let Chain {
            views, mut derived, ..
        } = self.chain;
        let Some(views) = views else {
            return Ok(false);
        };
        views.finish(&mut derived).map_err(ArchiveError::Views)?;
        for (member, recomputed, size) in derived.sums() {
            let same = |entry: &Entry| entry.sha256 == recomputed && entry.size == size;
            if !manifest.entry(member).is_some_and(same) {
                return Err(ArchiveError::ViewDiffers { member, recomputed });
            }
        }
        Ok(true)
    }
}

impl Chain<'_> {
    fn record(&mut self, line: &[u8]) -> Result<(), ArchiveError> {
        let seq = self.position.count;
        self.position = self
            .position
            .check(line)
            .map_err(|flaw| ArchiveError::chain(seq, flaw))?;
        check_line(Member::Journal.path(), seq + 1, line)?;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let wrong = |what: String| ArchiveError::Chain { seq, what };
        let envelope = Envelope::parse(line).map_err(|error| wrong(error.to_string()))?;
        if seq == 0 {
            self.opened(&envelope)?;
        }
        let Some(views) = &mut self.views else {
            return Ok(());
        };
        let hash = self.position.hash;
        let record = Record { seq, hash, line };
        views
            .record(record, &mut self.derived)
            .map_err(ArchiveError::Views)
    }

    /// Record 0 binds the chain to a format and a run.
    fn opened(&self, envelope: &Envelope<'_>) -> Result<(), ArchiveError> {
        match envelope.event() {
            Event::JournalOpened(opened) if opened.format != JOURNAL_FORMAT => Err(
                ArchiveError::Foreign(format!("its journal is of format {}", opened.format)),
            ),
            Event::JournalOpened(opened) if opened.run_id == self.run_id => Ok(()),
            Event::JournalOpened(opened) => Err(ArchiveError::ForeignJournal {
                manifest: self.run_id.clone(),
                journal: opened.run_id,
            }),
            other => Err(ArchiveError::Chain {
                seq: 0,
                what: format!("it opens no journal: it is of kind {:?}", other.kind()),
            }),
        }
    }
}
