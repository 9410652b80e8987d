//! What every storage must do, the real one and the one with faults alike.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use invigil_journal::Sharing::{Exclusive, Shared};
use invigil_journal::storage::{Access, FaultStorage};
use invigil_journal::{DiskStorage, Storage};

/// Two handles on the same files, as two processes have them.
struct Pair {
    one: Arc<dyn Storage>,
    other: Arc<dyn Storage>,
}

fn on_disk(check: fn(&Pair)) {
    let directory = tempfile::tempdir().unwrap();
    check(&Pair {
        one: Arc::new(DiskStorage::new(directory.path())),
        other: Arc::new(DiskStorage::new(directory.path())),
    });
}

fn in_memory(check: fn(&Pair)) {
    let storage = FaultStorage::new(1);
    check(&Pair {
        other: Arc::new(storage.another()),
        one: Arc::new(storage),
    });
}

macro_rules! suite {
    ($($check:ident),+ $(,)?) => {
        mod disk { $(#[test] fn $check() { super::on_disk(super::$check); })+ }
        mod fault { $(#[test] fn $check() { super::in_memory(super::$check); })+ }
    };
}

suite! {
    names_come_and_go,
    what_is_missing_is_not_found,
    writes_go_where_they_are_told,
    reads_end_at_the_end,
    a_reader_cannot_write,
    a_cut_takes_what_lies_behind,
    put_writes_in_place,
    renaming_replaces,
    syncs_succeed,
    the_lock_excludes_the_other_handle,
    the_lock_excludes_the_same_handle,
    the_lock_goes_with_its_handle,
    waiting_for_the_lock_ends_with_it,
}

fn list(storage: &Arc<dyn Storage>) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = storage.list().unwrap().into_iter().collect();
    // The locks of the real storage are files beside the others.
    names.remove("lock");
    names.remove("turn");
    names
}

fn read(storage: &Arc<dyn Storage>, name: &str) -> Vec<u8> {
    super::support::bytes_of(&**storage, name)
}

fn names_come_and_go(Pair { one, other }: &Pair) {
    assert!(list(one).is_empty());
    one.create("a").unwrap();
    one.create("b").unwrap();
    let again = one.create("a").err().unwrap();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(list(other), ["a".to_owned(), "b".to_owned()].into());
    other.remove("a").unwrap();
    assert_eq!(list(one), ["b".to_owned()].into());
}

fn what_is_missing_is_not_found(Pair { one, .. }: &Pair) {
    for access in [Access::Read, Access::Write] {
        let error = one.open("x", access).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    assert_eq!(one.remove("x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        one.rename("x", "y").unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert!(list(one).is_empty());
}

fn writes_go_where_they_are_told(Pair { one, other }: &Pair) {
    let mine = one.create("a").unwrap();
    let theirs = other.open("a", Access::Write).unwrap();
    assert_eq!(mine.write_at(b"one ", 0).unwrap(), 4);
    assert_eq!(theirs.write_at(b"two ", 4).unwrap(), 4);
    assert_eq!(mine.write_at(b"three", 8).unwrap(), 5);
    assert_eq!(mine.write_at(b"", 3).unwrap(), 0);
    assert_eq!(read(other, "a"), b"one two three");
    // Over what is there, over the end, and behind it.
    assert_eq!(theirs.write_at(b"TWO", 4).unwrap(), 3);
    assert_eq!(mine.write_at(b"REE!", 10).unwrap(), 4);
    assert_eq!(read(other, "a"), b"one TWO thREE!");
    assert_eq!(mine.write_at(b".", 16).unwrap(), 1);
    assert_eq!(read(other, "a"), b"one TWO thREE!\0\0.");
    assert_eq!(theirs.size().unwrap(), 17);
}

fn reads_end_at_the_end(Pair { one, other }: &Pair) {
    one.create("a").unwrap().write_at(b"0123456789", 0).unwrap();
    let file = other.open("a", Access::Read).unwrap();
    let mut buffer = [b'-'; 4];
    assert_eq!(file.read_at(&mut buffer, 3).unwrap(), 4);
    assert_eq!(&buffer, b"3456");
    assert_eq!(file.read_at(&mut buffer, 8).unwrap(), 2);
    assert_eq!(&buffer[..2], b"89");
    for behind in [10, 11, 1 << 40] {
        assert_eq!(file.read_at(&mut buffer, behind).unwrap(), 0);
    }
}

fn a_reader_cannot_write(Pair { one, .. }: &Pair) {
    one.create("a").unwrap().write_at(b"abc", 0).unwrap();
    let file = one.open("a", Access::Read).unwrap();
    assert!(file.write_at(b"d", 0).is_err());
    assert!(file.truncate(1).is_err());
    assert_eq!(read(one, "a"), b"abc");
}

fn a_cut_takes_what_lies_behind(Pair { one, other }: &Pair) {
    let mine = one.create("a").unwrap();
    let theirs = other.open("a", Access::Write).unwrap();
    mine.write_at(b"0123456789", 0).unwrap();
    theirs.truncate(4).unwrap();
    assert_eq!(mine.size().unwrap(), 4);
    mine.write_at(b"x", 4).unwrap();
    assert_eq!(read(one, "a"), b"0123x");
}

fn put_writes_in_place(Pair { one, other }: &Pair) {
    one.put("mark", b"first ").unwrap();
    other.put("mark", b"second").unwrap();
    assert_eq!(read(one, "mark"), b"second");
    assert_eq!(list(one), ["mark".to_owned()].into());
}

fn renaming_replaces(Pair { one, other }: &Pair) {
    one.create("a").unwrap().write_at(b"new", 0).unwrap();
    one.create("b").unwrap().write_at(b"old", 0).unwrap();
    one.rename("a", "b").unwrap();
    assert_eq!(list(other), ["b".to_owned()].into());
    assert_eq!(read(other, "b"), b"new");
}

fn syncs_succeed(Pair { one, .. }: &Pair) {
    let file = one.create("a").unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.sync().unwrap();
    one.sync().unwrap();
}

fn the_lock_excludes_the_other_handle(Pair { one, other }: &Pair) {
    assert!(one.lock(Exclusive).unwrap());
    // Nobody waits for an owner: that could be for hours.
    assert!(!other.lock(Exclusive).unwrap());
    assert!(!other.lock(Shared).unwrap());
    // Giving back what one does not have changes nothing.
    other.unlock().unwrap();
    assert!(!other.lock(Exclusive).unwrap());
    one.unlock().unwrap();
    assert!(other.lock(Exclusive).unwrap());
    assert!(!one.lock(Exclusive).unwrap());
    other.unlock().unwrap();
    assert!(other.lock(Shared).unwrap());
    assert!(!one.lock(Exclusive).unwrap());
    other.unlock().unwrap();
    assert!(one.lock(Exclusive).unwrap());
}

/// Two journals of one process may share a handle.
fn the_lock_excludes_the_same_handle(Pair { one, .. }: &Pair) {
    assert!(one.lock(Exclusive).unwrap());
    assert!(!one.lock(Exclusive).unwrap());
    assert!(!one.lock(Shared).unwrap());
    one.unlock().unwrap();
    assert!(one.lock(Exclusive).unwrap());
}

fn the_lock_goes_with_its_handle(Pair { one, other }: &Pair) {
    assert!(one.lock(Shared).unwrap());
    // The directory, or the memory, stays; only the handle goes.
    let taken = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock(Shared));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished(), "it is somebody else's turn");
        one.unlock().unwrap();
        waiting.join().unwrap()
    });
    assert!(taken.unwrap());
    assert!(!one.lock(Exclusive).unwrap());
}

fn waiting_for_the_lock_ends_with_it(Pair { one, other }: &Pair) {
    let total = std::sync::Mutex::new(0);
    // Not atomic on purpose: read, give way, write. Only the lock makes the sum right.
    let add = |storage: &Arc<dyn Storage>| {
        for _ in 0..200 {
            assert!(storage.lock(Shared).unwrap());
            let before = *total.lock().unwrap();
            std::thread::yield_now();
            *total.lock().unwrap() = before + 1;
            storage.unlock().unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(one));
        scope.spawn(|| add(one));
        scope.spawn(|| add(other));
    });
    assert_eq!(*total.lock().unwrap(), 600);
}

#[test]
fn a_dropped_handle_leaves_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (
        DiskStorage::new(directory.path()),
        DiskStorage::new(directory.path()),
    );
    assert!(!one.is_locked().unwrap());
    assert!(super::support::snapshot(directory.path()).is_empty());
    assert!(one.lock(Shared).unwrap());
    assert!(!other.is_locked().unwrap(), "nobody owns it");
    one.unlock().unwrap();
    assert!(one.lock(Exclusive).unwrap());
    assert!(other.is_locked().unwrap());
    drop(one);
    assert!(!other.is_locked().unwrap());

    let one = FaultStorage::new(1);
    let other = one.another();
    assert!(one.lock(Exclusive).unwrap());
    drop(one);
    assert!(other.lock(Exclusive).unwrap());
}
