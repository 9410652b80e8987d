//! What is run, and what it should cost.

use super::super::report::Goal;

/// One thing that agents do.
pub(super) struct Workload {
    pub(super) title: &'static str,
    /// Files that are there, by name.
    pub(super) inputs: &'static [(&'static str, &'static str)],
    /// Done once, for `sh`. `$SIZE` is the size.
    pub(super) prepare: &'static str,
    /// Done before every turn, for `sh`. Nobody measures.
    pub(super) clean: &'static str,
    /// What is measured: words, or a line for `sh`. `SIZE` is the size.
    pub(super) run: Run,
    pub(super) size: u32,
    /// How large it is in a quick round.
    pub(super) quick: u32,
    /// How large it is under strace, where that would take minutes otherwise.
    pub(super) traced: Option<u32>,
    /// Whether opens for reading are recorded too.
    pub(super) reads: bool,
    /// What the ratio to the bare command should be.
    pub(super) goal: Goal,
}

pub(super) enum Run {
    Words(&'static [&'static str]),
    Shell(&'static str),
}

const NOTHING: Workload = Workload {
    title: "",
    inputs: &[],
    prepare: "",
    clean: "",
    run: Run::Words(&[]),
    size: 1,
    quick: 1,
    traced: None,
    reads: false,
    goal: Goal::WithinSpread,
};

pub(super) const C_BUILD: Workload = Workload {
    title: "C build, make -j2",
    inputs: &[(
        "prepare-units.sh",
        include_str!("programs/build-prepare.sh"),
    )],
    prepare: "sh prepare-units.sh $SIZE",
    clean: "rm -rf build program; mkdir build",
    run: Run::Words(&["/usr/bin/make", "-j2"]),
    size: 24,
    quick: 6,
    ..NOTHING
};

const READS: Workload = Workload {
    inputs: &[("opens.c", include_str!("programs/opens.c"))],
    prepare: "gcc -O1 -o opens opens.c",
    run: Run::Words(&["./opens", "SIZE"]),
    size: 200_000,
    quick: 20_000,
    traced: Some(10_000),
    ..NOTHING
};

pub(super) const FILES: Workload = Workload {
    title: "20,000 files made, written, renamed, unlinked",
    inputs: &[("files.c", include_str!("programs/files.c"))],
    prepare: "gcc -O1 -o files files.c",
    run: Run::Words(&["./files", "SIZE"]),
    size: 20_000,
    quick: 2_000,
    goal: Goal::None,
    ..NOTHING
};

pub(super) const GIT: Workload = Workload {
    title: "git add, commit and clone of 3,000 files",
    prepare: "git config --global user.name x; git config --global user.email x@example.com\n\
              mkdir files; for i in $(seq $SIZE); do echo \"file $i\" > files/$i; done",
    clean: "rm -rf repository clone; mkdir repository; cp -r files repository",
    run: Run::Shell(
        "cd repository && git init -q . && git add . && git commit -q -m first && git clone -q . ../clone",
    ),
    size: 3_000,
    quick: 300,
    goal: Goal::AtMost(1.25),
    ..NOTHING
};

pub(super) const ALL: &[Workload] = &[
    Workload {
        goal: Goal::AtMost(1.08),
        ..C_BUILD
    },
    GIT,
    Workload {
        title: "1,000 × /bin/true",
        run: Run::Shell("i=0; while [ $i -lt SIZE ]; do /bin/true; i=$((i+1)); done"),
        size: 1_000,
        quick: 100,
        goal: Goal::AtMost(1.6),
        ..NOTHING
    },
    Workload {
        title: "30 starts of Python",
        run: Run::Shell("i=0; while [ $i -lt SIZE ]; do python3 -c pass; i=$((i+1)); done"),
        size: 30,
        quick: 3,
        goal: Goal::AtMost(1.05),
        ..NOTHING
    },
    Workload {
        title: "200,000 opens for reading",
        ..READS
    },
    FILES,
    Workload {
        title: "2,000 connects on loopback",
        inputs: &[("connects.c", include_str!("programs/connects.c"))],
        prepare: "gcc -O1 -o connects connects.c",
        run: Run::Words(&["./connects", "SIZE"]),
        size: 2_000,
        quick: 200,
        goal: Goal::AtMost(1.3),
        ..NOTHING
    },
    Workload {
        title: "pure computing",
        inputs: &[("cpu.c", include_str!("programs/cpu.c"))],
        prepare: "gcc -O1 -o cpu cpu.c",
        run: Run::Words(&["./cpu", "SIZE000000"]),
        size: 1_500,
        quick: 80,
        ..NOTHING
    },
    Workload {
        title: "C build, `--reads on`",
        reads: true,
        goal: Goal::AtMost(1.3),
        ..C_BUILD
    },
    Workload {
        title: "50,000 files read whole, `--reads on`",
        inputs: &[("reads.c", include_str!("programs/reads.c"))],
        prepare: "gcc -O1 -o reads reads.c; mkdir source
                  for i in $(seq 0 199); do head -c 8192 /dev/zero > source/file.$i; done",
        run: Run::Words(&["./reads", "SIZE"]),
        size: 50_000,
        quick: 5_000,
        traced: Some(5_000),
        reads: true,
        goal: Goal::AtMost(4.0),
        ..NOTHING
    },
    Workload {
        title: "200,000 opens for reading, `--reads on`",
        reads: true,
        goal: Goal::AtMost(4.0),
        ..READS
    },
];
