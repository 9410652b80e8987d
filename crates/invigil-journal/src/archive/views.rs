//! Derived members: computed from the records as they go by, the same way when an archive is packed and when it is
//! checked.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use invigil_schema::Digest;
use sha2::{Digest as _, Sha256};

use super::form::{Kind, Splitter, check, check_line};
use super::{ArchiveError, Limits, Member};
use crate::Record;

/// Why a view could not be computed.
pub type ViewError = Box<dyn Error + Send + Sync>;

/// Computes every derived member from the records of a journal.
///
/// It must depend on nothing else: who checks an archive computes it again and compares.
pub trait Views {
    /// Takes the next record. Members that have a line for a record are written here.
    fn record(&mut self, record: Record<'_>, out: &mut Derived) -> Result<(), ViewError>;
    /// There are no more records. Members that are folds over all of them are written here.
    fn finish(&mut self, out: &mut Derived) -> Result<(), ViewError>;
}

/// Takes the bytes of the derived members, in any order among them. A member that gets none has none.
pub struct Derived {
    slots: Vec<Slot>,
}

struct Slot {
    member: Member,
    sha256: Sha256,
    size: u64,
    /// Only while packing: where the bytes wait for their turn, and what is found wrong with them.
    spool: Option<Spool>,
}

struct Spool {
    file: BufWriter<File>,
    lines: Splitter,
    limit: u64,
}

impl Derived {
    /// For checking: only digests are kept.
    pub(crate) fn digests() -> Self {
        let slots = members().map(|member| Slot {
            member,
            sha256: Sha256::new(),
            size: 0,
            spool: None,
        });
        Derived {
            slots: slots.collect(),
        }
    }

    /// For packing: the bytes are kept in files without a name.
    pub(crate) fn spooled(
        limits: &Limits,
        mut scratch: impl FnMut() -> io::Result<File>,
    ) -> io::Result<Self> {
        let mut derived = Derived::digests();
        for slot in &mut derived.slots {
            slot.spool = Some(Spool {
                file: BufWriter::new(scratch()?),
                lines: Splitter::new(slot.member.path(), limits.document),
                limit: limits.document,
            });
        }
        Ok(derived)
    }

    /// Adds bytes to a derived member. They are checked to be what an archive may hold.
    pub fn write(&mut self, member: Member, bytes: &[u8]) -> Result<(), ViewError> {
        let slot = self.slots.iter_mut().find(|slot| slot.member == member);
        let Some(slot) = slot else {
            return Err(format!("{member} is not computed from the journal").into());
        };
        slot.sha256.update(bytes);
        slot.size += bytes.len() as u64;
        let Some(spool) = &mut slot.spool else {
            return Ok(());
        };
        match member.kind() {
            Kind::Lines => spool.lines.feed(bytes, |number, line| {
                check_line(member.path(), number, line)
            })?,
            Kind::Document if slot.size > spool.limit => {
                return Err(Box::new(ArchiveError::DocumentTooLarge {
                    member: member.path().to_owned(),
                    limit: spool.limit,
                }));
            }
            Kind::Document | Kind::Opaque => {}
        }
        spool.file.write_all(bytes)?;
        Ok(())
    }

    /// Digest and size of each member.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (Member, Digest, u64)> + '_ {
        self.slots.iter().map(|slot| {
            let digest = Digest::from_bytes(slot.sha256.clone().finalize().into());
            (slot.member, digest, slot.size)
        })
    }

    /// Packing: everything was written. Checks the documents and gives the files back, each at its beginning.
    pub(crate) fn into_spools(self) -> Result<Vec<(Member, File)>, ViewError> {
        let mut files = Vec::new();
        for Slot { member, spool, .. } in self.slots {
            let Some(Spool { file, lines, .. }) = spool else {
                continue;
            };
            let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            match member.kind() {
                Kind::Lines => lines.finish()?,
                Kind::Document => {
                    let mut document = Vec::new();
                    file.read_to_end(&mut document)?;
                    check(member.path(), 1, &document)?;
                    file.seek(SeekFrom::Start(0))?;
                }
                Kind::Opaque => {}
            }
            files.push((member, file));
        }
        Ok(files)
    }
}

fn members() -> impl Iterator<Item = Member> {
    Member::ALL.into_iter().filter(|member| member.is_derived())
}
