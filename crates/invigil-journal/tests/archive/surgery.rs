//! Takes an archive apart, and puts another one together in a sound container.

use invigil_journal::archive::{Manifest, Member};
use invigil_schema::Digest;
use sha2::{Digest as _, Sha256};

use crate::good;

/// Where the deflate stream begins.
pub(crate) const HEADER: usize = 48;
pub(crate) const TRAILER: usize = 8;

pub(crate) fn sha(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

pub(crate) fn untar(archive: &[u8]) -> Vec<u8> {
    let deflated = &archive[HEADER..archive.len() - TRAILER];
    miniz_oxide::inflate::decompress_to_vec(deflated).unwrap()
}

/// A valid gzip container around anything.
pub(crate) fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut rest = miniz_oxide::deflate::compress_to_vec(tar, 6);
    rest.extend(crc32fast::hash(tar).to_le_bytes());
    rest.extend((tar.len() as u32).to_le_bytes());
    reseal(&good()[..16], &rest)
}

pub(crate) fn reseal(preamble: &[u8], rest: &[u8]) -> Vec<u8> {
    [preamble, sha(rest).as_bytes(), rest].concat()
}

#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) header: [u8; 512],
    pub(crate) content: Vec<u8>,
}

impl Part {
    pub(crate) fn name(&self) -> &str {
        let end = self.header.iter().position(|&b| b == 0).unwrap();
        str::from_utf8(&self.header[..end]).unwrap()
    }

    /// Writes a field of the header and sums it up again.
    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
        self.header[148..156].fill(b' ');
        let sum: u32 = self.header.iter().map(|&byte| u32::from(byte)).sum();
        self.header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    pub(crate) fn rename(&mut self, name: &str) {
        let mut field = [0; 100];
        field[..name.len()].copy_from_slice(name.as_bytes());
        self.set(0, &field);
    }

    pub(crate) fn fill(&mut self, content: Vec<u8>) {
        self.set(124, format!("{:011o}", content.len()).as_bytes());
        self.content = content;
    }
}

pub(crate) fn parts(archive: &[u8]) -> Vec<Part> {
    let tar = untar(archive);
    let mut parts = Vec::new();
    let mut at = 0;
    while tar[at] != 0 {
        let header: [u8; 512] = tar[at..at + 512].try_into().unwrap();
        let digits = str::from_utf8(&header[124..135]).unwrap();
        let size = usize::from_str_radix(digits, 8).unwrap();
        let content = tar[at + 512..at + 512 + size].to_vec();
        parts.push(Part { header, content });
        at += 512 + size.next_multiple_of(512);
    }
    parts
}

pub(crate) fn tar(parts: &[Part]) -> Vec<u8> {
    let mut tar = Vec::new();
    for part in parts {
        tar.extend(part.header);
        tar.extend(&part.content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.extend([0; 1024]);
    tar
}

pub(crate) fn at(parts: &[Part], member: Member) -> usize {
    let found = parts.iter().position(|part| part.name() == member.path());
    found.unwrap()
}

/// Changes the parts; the container is sound again afterwards.
pub(crate) fn with(change: impl FnOnce(&mut Vec<Part>)) -> Vec<u8> {
    let mut parts = parts(good());
    change(&mut parts);
    gzip(&tar(&parts))
}

pub(crate) fn manifest(change: impl FnOnce(&mut Manifest)) -> Vec<u8> {
    with(|parts| change_manifest(parts, change))
}

pub(crate) fn change_manifest(parts: &mut [Part], change: impl FnOnce(&mut Manifest)) {
    let mut manifest: Manifest = serde_json::from_slice(&parts[0].content).unwrap();
    change(&mut manifest);
    let mut bytes = serde_json::to_vec_pretty(&manifest).unwrap();
    bytes.push(b'\n');
    parts[0].fill(bytes);
}

/// Puts other bytes into a member and lists them in the manifest.
pub(crate) fn forged(member: Member, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    with(|parts| forge(parts, member, change))
}

pub(crate) fn forge(parts: &mut [Part], member: Member, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
    let part = at(parts, member);
    let content = change(parts[part].content.clone());
    let (size, sha256) = (content.len() as u64, sha(&content));
    parts[part].fill(content);
    change_manifest(parts, |manifest| {
        let entry = manifest
            .members
            .iter_mut()
            .find(|e| e.path == member.path());
        let entry = entry.unwrap();
        (entry.size, entry.sha256) = (size, sha256);
    });
}

/// Puts another journal in, chained and listed as it should be, head included.
pub(crate) fn rewritten(change: impl FnOnce(&mut Vec<String>)) -> Vec<u8> {
    with(|parts| {
        let journal = String::from_utf8(parts[at(parts, Member::Journal)].content.clone());
        let journal = journal.unwrap();
        let mut bodies: Vec<String> = journal
            .lines()
            .map(|line| line[..line.len() - 75].to_owned())
            .collect();
        change(&mut bodies);
        let (mut hash, mut lines) = (Digest::ZERO, String::new());
        for body in &bodies {
            hash = sha(&[hash.as_bytes(), body.as_bytes()].concat());
            lines += &format!("{body},\"hash\":\"{hash}\"}}\n");
        }
        forge(parts, Member::Journal, |_| lines.into_bytes());
        change_manifest(parts, |manifest| {
            manifest.head.seq = bodies.len() as u64 - 1;
            manifest.head.hash = hash;
        });
    })
}

pub(crate) fn replaced(text: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    text.replacen(from, to, 1).into_bytes()
}

pub(crate) fn flipped(position: usize) -> Vec<u8> {
    let mut bytes = good().to_vec();
    bytes[position] ^= 1;
    bytes
}

pub(crate) fn deep(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}
