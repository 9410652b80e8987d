//! Every tampering that there is a name for, and damage at random.

use invigil_journal::archive::{ArchiveError as E, Member};
use invigil_schema::{Digest, RunId};
use proptest::prelude::*;

use crate::surgery::*;
use crate::{check, good};

/// One test for each way to tamper: what is done, and the one error that it gives.
macro_rules! refused {
    ($($name:ident: $archive:expr => $error:pat $(if $guard:expr)?,)+) => {$(
        #[test]
        fn $name() {
            let archive: Vec<u8> = $archive;
            let result = check(&archive);
            assert!(matches!(&result, Err($error) $(if $guard)?), "{result:?}");
            // What people read is one line that says something.
            let message = result.unwrap_err().to_string();
            assert!(message.len() > 10 && !message.contains('\n'), "{message}");
        }
    )+};
}

refused! {
    changed_bytes_name_the_member: with(|parts| {
        let part = at(parts, Member::SdkLayer);
        parts[part].content[3] ^= 1;
    }) => E::MemberChanged { member: Member::SdkLayer, .. },
    changed_attachment: with(|parts| {
        let part = at(parts, Member::DiffPatch);
        parts[part].content[0] = b'+';
    }) => E::MemberChanged { member: Member::DiffPatch, .. },
    changed_size: with(|parts| {
        let part = at(parts, Member::DiffPatch);
        parts[part].fill(b"x".to_vec());
    }) => E::MemberSize { member: Member::DiffPatch, listed: 12, found: 1 },
    other_run_in_the_manifest: manifest(|m| m.run_id = RunId::new("other").unwrap())
        => E::ForeignJournal { .. },
    duplicate_member: with(|parts| {
        let part = parts[at(parts, Member::Events)].clone();
        parts.push(part);
    }) => E::DuplicateMember(name) if name == "events.ndjson",
    duplicate_manifest: with(|parts| parts.insert(1, parts[0].clone()))
        => E::DuplicateMember(name) if name == "manifest.json",
    duplicate_in_the_manifest: manifest(|m| m.members.insert(1, m.members[0].clone()))
        => E::DuplicateMember(_),
    missing_member: with(|parts| drop(parts.remove(at(parts, Member::KernelLayer))))
        => E::MissingMember(name) if name == "layers/kernel.ndjson",
    missing_last_member: with(|parts| drop(parts.pop()))
        => E::MissingMember(name) if name == "observation-health.json",
    missing_in_the_manifest: manifest(|m| drop(m.members.remove(0)))
        => E::MissingMember(name) if name == "capability-surface.json",
    missing_manifest: with(|parts| drop(parts.remove(0)))
        => E::MissingMember(name) if name == "manifest.json",
    empty_archive: with(Vec::clear) => E::MissingMember(_),
    extra_member: with(|parts| {
        let mut part = parts[1].clone();
        part.rename("zzz.json");
        parts.push(part);
    }) => E::ExtraMember(name) if name == "zzz.json",
    extra_member_in_the_middle: with(|parts| {
        let mut part = parts[1].clone();
        part.rename("b.json");
        parts.insert(2, part);
    }) => E::ExtraMember(name) if name == "b.json",
    extra_in_the_manifest: manifest(|m| m.members[0].path = "../etc/passwd".into())
        => E::ExtraMember(_),
    unlisted_member: manifest(|m| m.members.retain(|entry| entry.path != "diff.patch"))
        => E::ExtraMember(name) if name == "diff.patch",
    members_out_of_order: with(|parts| parts.swap(2, 3)) => E::OutOfOrder { .. },
    manifest_not_first: with(|parts| parts.swap(0, 1))
        => E::OutOfOrder { expected, .. } if expected == "manifest.json",
    listed_out_of_order: manifest(|m| m.members.swap(2, 3)) => E::OutOfOrder { .. },

    symbolic_link: with(|parts| parts[1].set(156, b"2")) => E::MemberType { what: "a symbolic link", .. },
    hard_link: with(|parts| parts[1].set(156, b"1")) => E::MemberType { what: "a hard link", .. },
    directory: with(|parts| parts[1].set(156, b"5")) => E::MemberType { what: "a directory", .. },
    device: with(|parts| parts[1].set(156, b"3")) => E::MemberType { what: "a device", .. },
    fifo: with(|parts| parts[1].set(156, b"6")) => E::MemberType { what: "a FIFO", .. },
    pax_extension: with(|parts| parts[1].set(156, b"x")) => E::MemberType { what: "a pax extension", .. },
    global_pax_extension: with(|parts| parts[0].set(156, b"g")) => E::MemberType { what: "a pax extension", .. },
    gnu_extension: with(|parts| parts[1].set(156, b"L")) => E::MemberType { what: "a GNU extension", .. },
    old_tar_type: with(|parts| parts[1].set(156, b"\0")) => E::MemberType { .. },
    gnu_magic: with(|parts| parts[1].set(257, b"ustar  \0")) => E::TarHeader { .. },
    dot_alias: with(|parts| parts[1].rename("./capability-surface.json")) => E::MemberName { .. },
    dot_alias_of_the_manifest: with(|parts| parts[0].rename("./manifest.json")) => E::MemberName { .. },
    inner_dot_alias: with(|parts| parts[1].rename("layers/./sdk.ndjson")) => E::MemberName { .. },
    double_slash: with(|parts| parts[1].rename("layers//sdk.ndjson")) => E::MemberName { .. },
    trailing_slash: with(|parts| parts[1].rename("events.ndjson/")) => E::MemberName { .. },
    absolute_name: with(|parts| parts[1].rename("/etc/passwd")) => E::MemberName { what: "it is absolute", .. },
    parent_name: with(|parts| parts[1].rename("layers/../x")) => E::MemberName { .. },
    name_with_prefix: with(|parts| parts[1].set(345, b"evil")) => E::Attribute { field: "prefix", .. },
    name_with_more_behind: with(|parts| parts[1].set(60, b"x")) => E::Attribute { field: "name", .. },
    other_mode: with(|parts| parts[1].set(100, b"0000755")) => E::Attribute { field: "mode", .. },
    other_owner: with(|parts| parts[1].set(108, b"0001750")) => E::Attribute { field: "owner", .. },
    other_group: with(|parts| parts[1].set(116, b"0001750")) => E::Attribute { field: "group", .. },
    other_time: with(|parts| parts[1].set(136, b"00000000001")) => E::Attribute { field: "time", .. },
    owner_name: with(|parts| parts[1].set(265, b"root")) => E::Attribute { field: "owner name", .. },
    other_device: with(|parts| parts[1].set(329, b"0000001")) => E::Attribute { field: "device", .. },
    link_target: with(|parts| parts[1].set(157, b"x")) => E::Attribute { field: "link", .. },
    other_spelling_of_the_size: with(|parts| {
        let size = format!("{:010o} ", parts[1].content.len());
        parts[1].set(124, size.as_bytes());
    }) => E::Attribute { field: "size", .. },
    mode_of_the_manifest: with(|parts| parts[0].set(100, b"0000755")) => E::TarHeader { .. },
    header_checksum: with(|parts| parts[1].header[300] ^= 1) => E::TarHeader { .. },
    size_in_base_256: with(|parts| parts[1].set(124, &[0x80, 0, 0])) => E::TarHeader { .. },

    non_zero_padding: {
        let mut tar = untar(good());
        let manifest = parts(good())[0].content.len();
        let surface = 512 + manifest.next_multiple_of(512) + 512;
        tar[surface + 511] = 1;
        gzip(&tar)
    } => E::Padding { member: Member::CapabilitySurface },
    non_zero_padding_of_the_manifest: {
        let mut tar = untar(good());
        let manifest = parts(good())[0].content.len();
        tar[512 + manifest] = 1;
        gzip(&tar)
    } => E::Manifest(_),
    missing_tar_end: {
        let tar = untar(good());
        gzip(&tar[..tar.len() - 1024])
    } => E::MissingTarEnd(_),
    half_a_tar_end: {
        let tar = untar(good());
        gzip(&tar[..tar.len() - 512])
    } => E::MissingTarEnd(_),
    cut_in_a_member: {
        let tar = untar(good());
        gzip(&tar[..1600])
    } => E::MissingTarEnd(_),
    data_after_the_tar_end: gzip(&[untar(good()), vec![0; 512]].concat()) => E::DataAfterTarEnd,
    member_after_the_tar_end: gzip(&[untar(good()), untar(good())].concat()) => E::DataAfterTarEnd,

    not_gzip: b"PK\x03\x04 is something else altogether, no archive".to_vec() => E::GzipHeader(_),
    gzip_with_a_time: flipped(4) => E::GzipHeader(_),
    gzip_with_a_name: flipped(3) => E::GzipHeader(_),
    gzip_of_another_system: flipped(9) => E::GzipHeader(_),
    bad_crc: {
        let mut bytes = good().to_vec();
        let crc = bytes.len() - TRAILER;
        bytes[crc] ^= 1;
        bytes
    } => E::Crc,
    bad_length: {
        let mut bytes = good().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    } => E::GzipLength,
    bad_deflate: {
        let mut bytes = good().to_vec();
        bytes[HEADER] |= 0b110;
        bytes
    } => E::Deflate,
    truncated: good()[..good().len() - 1].to_vec() => E::Truncated,
    no_bytes: Vec::new() => E::Truncated,
    data_after_the_end: [good(), b"x"].concat() => E::TrailingData,
    second_gzip_member: [good(), good()].concat() => E::TrailingData,
    seal: flipped(16) => E::Seal,
    compressed_in_another_way: {
        let tar = untar(good());
        let mut rest = miniz_oxide::deflate::compress_to_vec(&tar, 6);
        rest.extend(&good()[good().len() - TRAILER..]);
        [&good()[..HEADER], &rest].concat()
    } => E::Seal,

    duplicate_key_in_the_manifest: with(|parts| {
        let doubled = replaced(parts[0].content.clone(), "{", "{\"format\":1,");
        parts[0].fill(doubled);
    }) => E::DuplicateKey { key, .. } if key == "format",
    duplicate_key_in_a_document: forged(Member::CorrelationReport, |_| {
        b"{\"a\":[{\"b\":1,\n\"\\u0062\":2}]}".to_vec()
    }) => E::DuplicateKey { line: 2, .. },
    duplicate_key_in_a_line: forged(Member::SdkLayer, |text| replaced(text, "{\"seq\"", "{\"kind\":1,\"seq\""))
        => E::DuplicateKey { member, line: 1, .. } if member == "layers/sdk.ndjson",
    duplicate_key_in_the_journal: rewritten(|bodies| bodies[2].push_str(",\"kind\":\"x\""))
        => E::DuplicateKey { line: 3, .. },
    deep_manifest: with(|parts| {
        let nested = replaced(parts[0].content.clone(), "{", &format!("{{\"x\":{},", deep(64)));
        parts[0].fill(nested);
    }) => E::TooDeep { .. },
    deep_document: forged(Member::Contract, |_| deep(65).into_bytes()) => E::TooDeep { .. },
    deep_line: forged(Member::Events, |text| [text, deep(65).into_bytes(), b"\n".to_vec()].concat())
        => E::TooDeep { member, line: 2, .. } if member == "events.ndjson",
    deep_record: rewritten(|bodies| {
        bodies[4] = bodies[4].replace("\"n\":", &format!("\"m\":{},\"n\":", deep(63)));
    }) => E::TooDeep { line: 5, .. },
    not_json: forged(Member::ObservationHealth, |_| b"{]".to_vec()) => E::Json { .. },
    empty_document: forged(Member::ObservationHealth, |_| Vec::new()) => E::Json { .. },
    two_documents: forged(Member::ObservationHealth, |_| b"{}{}".to_vec()) => E::Json { .. },
    not_utf8: forged(Member::ObservationHealth, |_| b"\"\xff\"".to_vec()) => E::Json { .. },
    empty_line: forged(Member::Events, |text| [b"\n".to_vec(), text].concat()) => E::Json { line: 1, .. },
    unfinished_line: forged(Member::Events, |mut text| { text.pop(); text }) => E::Json { line: 1, .. },
    manifest_in_another_spelling: with(|parts| {
        let spaced = replaced(parts[0].content.clone(), "{", "{ ");
        parts[0].fill(spaced);
    }) => E::Manifest(_),
    manifest_with_more: with(|parts| {
        let more = replaced(parts[0].content.clone(), "{", "{\"more\":1,");
        parts[0].fill(more);
    }) => E::Manifest(_),
    manifest_of_another_version: manifest(|m| m.format = 2) => E::Foreign(_),
    manifest_of_another_schema: manifest(|m| m.schema = "x".into()) => E::Foreign(_),

    changed_record: forged(Member::Journal, |text| replaced(text, "\"n\":4", "\"n\":5"))
        => E::Chain { seq: 5, .. },
    removed_record: forged(Member::Journal, |text| {
        let text = String::from_utf8(text).unwrap();
        let kept = text.split_inclusive('\n').enumerate().filter(|(n, _)| *n != 3);
        kept.map(|(_, line)| line).collect::<String>().into_bytes()
    }) => E::Chain { seq: 3, .. },
    record_without_an_end: forged(Member::Journal, |mut text| { text.pop(); text })
        => E::Chain { seq: 13, .. },
    empty_journal: forged(Member::Journal, |_| Vec::new()) => E::Chain { seq: 0, .. },
    endless_record: forged(Member::Journal, |text| [text, vec![b' '; 2 << 20]].concat())
        => E::Chain { seq: 14, .. },
    journal_cut_at_the_end: forged(Member::Journal, |text| {
        let text = String::from_utf8(text).unwrap();
        text.split_inclusive('\n').take(10).collect::<String>().into_bytes()
    }) => E::Head { .. },
    other_head_in_the_manifest: manifest(|m| m.head.hash = Digest::ZERO) => E::Head { .. },
    journal_that_opens_nothing: rewritten(|bodies| {
        bodies[0] = bodies[0].replace("journal_opened", "something");
    }) => E::Chain { seq: 0, .. },
    journal_of_another_run: rewritten(|bodies| bodies[0] = bodies[0].replace("run_golden", "run_other"))
        => E::ForeignJournal { .. },
    journal_of_another_format: rewritten(|bodies| bodies[0] = bodies[0].replace("\"format\":1", "\"format\":9"))
        => E::Foreign(_),

    forged_view: forged(Member::CapabilitySurface, |text| replaced(text, "14", "13"))
        => E::ViewDiffers { member: Member::CapabilitySurface, .. },
    forged_layer: forged(Member::KernelLayer, |_| Vec::new())
        => E::ViewDiffers { member: Member::KernelLayer, .. },
    forged_lifecycle: forged(Member::Events, |text| [text.clone(), text].concat())
        => E::ViewDiffers { member: Member::Events, .. },
    rewritten_journal_with_old_views: rewritten(|bodies| drop(bodies.pop()))
        => E::ViewDiffers { .. },
}

#[test]
fn cut_anywhere_it_is_refused() {
    for end in 0..good().len() {
        let result = check(&good()[..end]);
        assert!(matches!(result, Err(E::Truncated)), "{end}: {result:?}");
    }
}

#[test]
fn every_changed_byte_is_refused() {
    for position in 0..good().len() {
        let mut bytes = good().to_vec();
        bytes[position] ^= 1 << (position % 8);
        assert!(check(&bytes).is_err(), "byte {position}");
    }
}

proptest! {
    #[test]
    fn random_damage_is_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..8)
    ) {
        let mut bytes = good().to_vec();
        for (index, mask) in damage {
            *index.get_mut(&mut bytes) ^= mask;
        }
        prop_assume!(bytes != good());
        prop_assert!(check(&bytes).is_err());
    }

    #[test]
    fn random_damage_inside_is_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..8)
    ) {
        let mut inside = untar(good());
        let whole = inside.clone();
        for (index, mask) in damage {
            *index.get_mut(&mut inside) ^= mask;
        }
        prop_assume!(inside != whole);
        prop_assert!(check(&gzip(&inside)).is_err());
    }

    #[test]
    fn any_tar_or_any_stream_never_panics(bytes: Vec<u8>) {
        prop_assert!(check(&bytes).is_err());
        prop_assert!(check(&gzip(&bytes)).is_err());
        prop_assert!(check(&reseal(&good()[..16], &bytes)).is_err());
    }
}
