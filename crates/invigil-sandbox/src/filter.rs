//! The seccomp filter: rules about registers, compiled to BPF.
//!
//! A filter cannot look at memory. Calls whose number alone decides that they pass cost nothing: the kernel remembers
//! the verdict (Linux 5.11).

use libc::{sock_filter, sock_fprog};

/// One call that does not simply pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Its number.
    pub(crate) number: i64,
    /// When it is trapped; otherwise it passes.
    pub(crate) when: When,
}

/// What a rule looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    /// At nothing.
    Always,
    /// The low half of an argument has one of these bits.
    AnyBit(u8, u32),
    /// The low half of an argument is this.
    Equals(u8, u32),
    /// The low half of an argument is one of these.
    OneOf(u8, &'static [u32]),
    /// The low halves of the first two arguments are not these.
    NotBoth(u32, u32),
    /// A socket that is not plainly Unix, TCP or routing.
    Socket,
    /// An argument is not null.
    NonZero(u8),
    /// The flags of `clone` have one of these bits, or make a process, not a thread, that shares its file system
    /// context: umask and working directory.
    Clone(u32),
    /// It always fails with this error, untrapped.
    Refused(u16),
    /// It fails with this error, untrapped, if its second and third argument are one of these pairs.
    RefusedOptions(u16, &'static [(i32, i32)]),
}

/// How a trapped call is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trap {
    /// To the listener.
    Notify,
    /// To the tracer.
    Trace,
}

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: u32 = 0xc000_00b7;
/// Numbers from here on are calls of the x32 architecture. No other number is as great.
pub(crate) const X32: u32 = 0x4000_0000;

const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_GREATER_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SOCKET_KIND: u32 = 0xf;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

fn low_half(argument: u8) -> u32 {
    ARGUMENTS_OFFSET + 8 * u32::from(argument)
}

/// Compiles the rules. Calls of another architecture are trapped whatever they are.
pub(crate) fn compile(rules: &[Rule], trap: Trap) -> Vec<sock_filter> {
    let trapped = match trap {
        Trap::Notify => libc::SECCOMP_RET_USER_NOTIF,
        Trap::Trace => libc::SECCOMP_RET_TRACE,
    };
    let mut program = vec![
        op(LOAD, ARCH_OFFSET, 0, 0),
        op(JUMP_EQUAL, ARCH, 1, 0),
        op(RETURN, trapped, 0, 0),
        op(LOAD, NUMBER_OFFSET, 0, 0),
        op(JUMP_GREATER_EQUAL, X32, 0, 1),
        op(RETURN, trapped, 0, 0),
    ];
    for rule in rules {
        let body = match rule.when {
            When::Always => vec![op(RETURN, trapped, 0, 0)],
            When::Refused(errno) => {
                vec![op(RETURN, libc::SECCOMP_RET_ERRNO | u32::from(errno), 0, 0)]
            }
            When::RefusedOptions(errno, pairs) => {
                let refused = libc::SECCOMP_RET_ERRNO | u32::from(errno);
                let mut body = Vec::new();
                for (level, name) in pairs {
                    body.extend([
                        op(LOAD, low_half(1), 0, 0),
                        op(JUMP_EQUAL, *level as u32, 0, 3),
                        op(LOAD, low_half(2), 0, 0),
                        op(JUMP_EQUAL, *name as u32, 0, 1),
                        op(RETURN, refused, 0, 0),
                    ]);
                }
                body.push(op(RETURN, ALLOW, 0, 0));
                body
            }
            When::AnyBit(argument, bits) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_SET, bits, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::Clone(bits) => vec![
                op(LOAD, low_half(0), 0, 0),
                op(JUMP_SET, bits, 2, 0),
                op(JUMP_SET, libc::CLONE_THREAD as u32, 2, 0),
                op(JUMP_SET, libc::CLONE_FS as u32, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::Equals(argument, value) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_EQUAL, value, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::OneOf(argument, values) => {
                let mut body = vec![op(LOAD, low_half(argument), 0, 0)];
                for (i, value) in values.iter().enumerate() {
                    body.push(op(JUMP_EQUAL, *value, (values.len() - i) as u8, 0));
                }
                body.extend([op(RETURN, ALLOW, 0, 0), op(RETURN, trapped, 0, 0)]);
                body
            }
            When::NotBoth(one, other) => vec![
                op(LOAD, low_half(0), 0, 0),
                op(JUMP_EQUAL, one, 0, 3),
                op(LOAD, low_half(1), 0, 0),
                op(JUMP_EQUAL, other, 0, 1),
                op(RETURN, ALLOW, 0, 0),
                op(RETURN, trapped, 0, 0),
            ],
            When::Socket => vec![
                op(LOAD, low_half(0), 0, 0),
                op(JUMP_EQUAL, libc::AF_UNIX as u32, 10, 0),
                op(JUMP_EQUAL, libc::AF_NETLINK as u32, 7, 0),
                op(JUMP_EQUAL, libc::AF_INET as u32, 1, 0),
                op(JUMP_EQUAL, libc::AF_INET6 as u32, 0, 8),
                op(LOAD, low_half(1), 0, 0),
                op(AND, SOCKET_KIND, 0, 0),
                op(JUMP_EQUAL, libc::SOCK_STREAM as u32, 0, 5),
                op(LOAD, low_half(2), 0, 0),
                op(JUMP_EQUAL, libc::IPPROTO_TCP as u32, 2, 0),
                // Routing has the number of no protocol.
                op(LOAD, low_half(2), 0, 0),
                op(JUMP_EQUAL, libc::NETLINK_ROUTE as u32, 0, 1),
                op(RETURN, ALLOW, 0, 0),
                op(RETURN, trapped, 0, 0),
            ],
            When::NonZero(argument) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_EQUAL, 0, 0, 2),
                op(LOAD, low_half(argument) + 4, 0, 0),
                op(JUMP_EQUAL, 0, 1, 0),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
        };
        program.push(op(JUMP_EQUAL, rule.number as u32, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(op(RETURN, ALLOW, 0, 0));
    program
}

/// The form in which the kernel takes a program. It points into `program`.
pub(crate) fn as_fprog(program: &[sock_filter]) -> sock_fprog {
    sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn run(program: &[sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let load = |offset: u32| match offset {
            NUMBER_OFFSET => number,
            ARCH_OFFSET => arch,
            _ => {
                let (index, high) = (
                    (offset - ARGUMENTS_OFFSET) / 8,
                    (offset - ARGUMENTS_OFFSET) % 8,
                );
                (arguments[index as usize] >> (8 * high)) as u32
            }
        };
        let (mut at, mut a) = (0, 0);
        loop {
            let step = program[at];
            let taken = match u32::from(step.code) {
                LOAD => {
                    a = load(step.k);
                    None
                }
                AND => {
                    a &= step.k;
                    None
                }
                RETURN => return step.k,
                JUMP_EQUAL => Some(a == step.k),
                JUMP_SET => Some(a & step.k != 0),
                JUMP_GREATER_EQUAL => Some(a >= step.k),
                code => panic!("{code}"),
            };
            at += 1 + taken.map_or(0, |t| usize::from(if t { step.jt } else { step.jf }));
        }
    }

    #[test]
    fn lists_pairs_and_sockets() {
        let rule = |number, when| Rule { number, when };
        let rules = [
            rule(1, When::OneOf(1, &[7, 8, 9])),
            rule(2, When::NotBoth(1, 0)),
            rule(3, When::Socket),
        ];
        let program = compile(&rules, Trap::Notify);
        let traps = |number, a: [u64; 3]| {
            let [one, two, three] = a;
            let arguments = [one, two, three, 0, 0, 0];
            run(&program, ARCH, number, arguments) != ALLOW
        };
        for (value, trapped) in [(6, false), (7, true), (8, true), (9, true), (10, false)] {
            assert_eq!(traps(1, [0, value, 0]), trapped);
        }
        assert!(!traps(2, [1, 0, 0]) && traps(2, [1, 5, 0]) && traps(2, [2, 0, 0]));
        let (stream, datagram, raw, flags) = (1, 2, 3, 0o2_004_000);
        let plain = [
            [1, stream, 0],
            [1, datagram, 0],
            [2, stream | flags, 0],
            [10, stream, 6],
            [16, raw, 0],
        ];
        assert!(plain.into_iter().all(|socket| !traps(3, socket)));
        let unusual = [
            [2, datagram, 0],
            [2, raw, 1],
            [2, stream, 262],
            [10, stream, 132],
            [16, raw, 9],
            [17, raw, 0],
            [40, stream, 0],
            [43, stream, 0],
        ];
        assert!(unusual.into_iter().all(|socket| traps(3, socket)));
    }

    #[test]
    fn registers_decide() {
        let rules = [
            Rule {
                number: 1,
                when: When::AnyBit(2, 3),
            },
            Rule {
                number: 2,
                when: When::NonZero(4),
            },
            Rule {
                number: 3,
                when: When::Equals(0, 77),
            },
            Rule {
                number: 4,
                when: When::Refused(38),
            },
            Rule {
                number: 5,
                when: When::Always,
            },
            Rule {
                number: 7,
                when: When::Clone(1 << 28),
            },
            Rule {
                number: 8,
                when: When::RefusedOptions(1, &[(0, 4), (41, 57)]),
            },
        ];
        let program = compile(&rules, Trap::Notify);
        let trapped = libc::SECCOMP_RET_USER_NOTIF;
        let with = |index: usize, value: u64| {
            let mut arguments = [0; 6];
            arguments[index] = value;
            arguments
        };
        assert_eq!(run(&program, ARCH, 1, with(2, 2)), trapped);
        assert_eq!(run(&program, ARCH, 1, with(2, 4)), ALLOW);
        assert_eq!(run(&program, ARCH, 2, with(4, 0)), ALLOW);
        assert_eq!(run(&program, ARCH, 2, with(4, 1)), trapped);
        assert_eq!(run(&program, ARCH, 2, with(4, 1 << 40)), trapped);
        assert_eq!(run(&program, ARCH, 3, with(0, 77)), trapped);
        assert_eq!(run(&program, ARCH, 3, with(0, 78)), ALLOW);
        assert_eq!(run(&program, ARCH, 4, [0; 6]), libc::SECCOMP_RET_ERRNO | 38);
        assert_eq!(run(&program, ARCH, 5, [0; 6]), trapped);
        assert_eq!(run(&program, ARCH, 6, [0; 6]), ALLOW);
        let (thread, fs) = (libc::CLONE_THREAD as u64, libc::CLONE_FS as u64);
        assert_eq!(run(&program, ARCH, 7, with(0, thread | fs)), ALLOW);
        assert_eq!(run(&program, ARCH, 7, with(0, fs)), trapped);
        assert_eq!(run(&program, ARCH, 7, with(0, 17)), ALLOW);
        assert_eq!(
            run(&program, ARCH, 7, with(0, thread | fs | 1 << 28)),
            trapped
        );
        for (level, name, refused) in [(0, 4, true), (41, 57, true), (41, 4, false), (0, 57, false)]
        {
            let expected = if refused {
                libc::SECCOMP_RET_ERRNO | 1
            } else {
                ALLOW
            };
            let arguments = [3, level, name, 0, 0, 0];
            assert_eq!(run(&program, ARCH, 8, arguments), expected);
        }
        assert_eq!(run(&program, ARCH, X32 | 6, [0; 6]), trapped);
        assert_eq!(run(&program, 0x4000_0003, 6, [0; 6]), trapped);
    }
}
