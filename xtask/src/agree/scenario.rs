//! What is run: real programs, each in a folder of its own, without the network.

use super::mask::Mask;

/// One thing that people do.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What must be installed.
    pub(super) needs: &'static [&'static str],
    /// Whether it needs a Rust toolchain, which is in `$RUST`.
    pub(super) rust: bool,
    /// Files that are there, by name.
    pub(super) inputs: &'static [(&'static str, &'static str)],
    /// Makes more inputs, for `sh`. Nobody watches.
    pub(super) prepare: &'static str,
    /// What is watched, for `sh`.
    pub(super) run: &'static str,
    /// Names that are another in each run.
    pub(super) masks: &'static [Mask],
    /// Whether processes that run side by side write to the same output.
    pub(super) unordered_output: bool,
}

const NOTHING: Scenario = Scenario {
    name: "",
    needs: &[],
    rust: false,
    inputs: &[],
    prepare: "",
    run: "",
    masks: &[],
    unordered_output: false,
};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "shell",
        run: include_str!("programs/shell.sh"),
        ..NOTHING
    },
    Scenario {
        name: "files",
        needs: &["python3"],
        inputs: &[("files.py", include_str!("programs/files.py"))],
        run: "exec python3 files.py\n",
        masks: &[("#%+", "a nameless file, by its inode")],
        ..NOTHING
    },
    Scenario {
        name: "network",
        needs: &["python3"],
        inputs: &[("network.py", include_str!("programs/network.py"))],
        run: "exec python3 network.py\n",
        ..NOTHING
    },
    Scenario {
        name: "waiting",
        needs: &["python3"],
        inputs: &[("waiting.py", include_str!("programs/waiting.py"))],
        run: "exec python3 waiting.py\n",
        ..NOTHING
    },
    Scenario {
        name: "forks",
        needs: &["gcc"],
        inputs: &[("forks.c", include_str!("programs/forks.c"))],
        prepare: "gcc -O1 -o forks forks.c\n",
        run: "exec ./forks 10000\n",
        ..NOTHING
    },
    Scenario {
        name: "git",
        needs: &["git"],
        prepare: include_str!("programs/git-prepare.sh"),
        run: include_str!("programs/git.sh"),
        masks: &[
            ("tmp_obj_??????", "a loose object before it has its name"),
            ("tmp_pack_??????", "a pack before it has its name"),
            ("tmp_idx_??????", "the index of a pack, likewise"),
            ("tmp_rev_??????", "the reverse index of a pack, likewise"),
            (".tmp-%+-pack", "packs of one repack, named by its pid"),
            (
                "tmp_objdir-incoming-??????",
                "where a push waits to be accepted",
            ),
            ("fetch-pack %+ on", "who keeps a pack, by pid"),
            ("refs_??????", "a list before it has its name"),
            ("packs_??????", "likewise"),
            (".git/t??????", "a file to try out symbolic links with"),
        ],
        ..NOTHING
    },
    Scenario {
        name: "make",
        needs: &["gcc", "make"],
        prepare: include_str!("programs/make-prepare.sh"),
        run: "make -j2\n./program\n",
        unordered_output: true,
        masks: &[
            ("cc??????.s", "the assembler text between two passes of gcc"),
            ("cc??????.o", "an object between two passes of gcc"),
            ("cc??????.res", "what the linker's plugin says"),
            ("cc??????.le", "likewise"),
            ("cc??????.ld", "likewise"),
            ("cc??????.c", "what collect2 writes"),
            ("cc??????", "a file of arguments of gcc"),
            ("st??????", "an archive of ar before it has its name"),
        ],
        ..NOTHING
    },
    Scenario {
        name: "cargo",
        needs: &["gcc"],
        rust: true,
        prepare: include_str!("programs/cargo-prepare.sh"),
        run: "cd crate\nexec \"$RUST/bin/cargo\" build --offline --quiet\n",
        masks: &[
            ("rustc??????", "the linker's folder"),
            ("rmeta??????", "metadata before it has its name"),
            (".tmp???????", "a temporary file of the linker"),
            (".tmp??????.temp-archive", "where rustc makes an archive"),
            ("pipe:[%+]", "a pipe that is opened by its descriptor"),
            (
                "crate/target??????",
                "the build folder before it has its name",
            ),
            ("cc??????.cdtor", "constructors, between two passes of gcc"),
            ("???????.rcgu", "an object of this one rustc"),
            ("cc??????.res", "what the linker's plugin says"),
            ("cc??????.c", "what collect2 writes"),
            ("cc??????.o", "likewise"),
            ("cc??????.le", "likewise"),
            ("cc??????.ld", "likewise"),
            ("s-+-working", "an incremental session, named by the time"),
            ("s-+.lock", "its lock"),
            ("s-+", "the session when it is finished"),
        ],
        ..NOTHING
    },
    Scenario {
        name: "pip",
        needs: &["python3"],
        prepare: include_str!("programs/pip-prepare.sh"),
        run: include_str!("programs/pip.sh"),
        masks: &[
            (
                "pip-+-????????/????????????????????????????????????????????????????????",
                "what pip knows of a build",
            ),
            ("pip-+-????????", "a working folder of pip"),
            (
                "INSTALLER????????.tmp",
                "a file of pip before it has its name",
            ),
            ("RECORD????????.tmp", "likewise"),
            ("direct_url.json????????.tmp", "likewise"),
            ("tmp/????????", "a temporary file of python"),
            ("tmp????????", "likewise"),
            (
                "__pycache__/+.cpython-%%%.pyc.%+",
                "byte code before it has its name, which is an address in memory",
            ),
        ],
        ..NOTHING
    },
    Scenario {
        name: "npm",
        needs: &["npm"],
        prepare: include_str!("programs/npm-prepare.sh"),
        run: include_str!("programs/npm.sh"),
        masks: &[
            ("_cacache/tmp/+", "a working file of the cache"),
            ("_logs/%%%%-%%-%%T%%_%%_%%_%%%Z", "a log, named by the time"),
            (".small-????????", "a package that is moved away"),
        ],
        ..NOTHING
    },
    Scenario {
        name: "ssh-keygen",
        needs: &["ssh-keygen"],
        run: "ssh-keygen -q -t ed25519 -N '' -C somebody -f key\nssh-keygen -y -f key > again\nssh-keygen -l -f key.pub > print\n",
        ..NOTHING
    },
];
