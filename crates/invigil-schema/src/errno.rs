//! Errors of system calls, by the name that people know them by.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An error number of Linux, written by its name: `EACCES`. A number without a known name is written as `E#` and the
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

/// Not the name of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an error, such as EACCES")]
pub struct ParseErrnoError;

/// How a system call ended: `ok`, the name of its error, or `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallResult {
    /// It succeeded.
    Ok,
    /// It failed.
    Failed(Errno),
    /// It was attempted; how it ended was not seen.
    Unknown,
}

impl CallResult {
    /// Whether it is known to have succeeded.
    pub fn is_ok(self) -> bool {
        self == CallResult::Ok
    }

    /// From what the kernel returns: a negative number down to −4095 is an error.
    pub fn from_return(value: i64) -> Self {
        match value {
            -4095..=-1 => CallResult::Failed(Errno(-value as i32)),
            _ => CallResult::Ok,
        }
    }
}

macro_rules! errnos {
    ($($number:literal $name:ident)+) => {
        impl Errno {
            /// The name, if the number has one.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }

        impl FromStr for Errno {
            type Err = ParseErrnoError;
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $(stringify!($name) => Ok(Errno($number)),)+
                    "EWOULDBLOCK" => Ok(Errno(11)),
                    "EOPNOTSUPP" => Ok(Errno(95)),
                    _ => name.strip_prefix("E#").and_then(|n| n.parse().ok()).map(Errno).ok_or(ParseErrnoError),
                }
            }
        }
    };
}

// The numbers that x86-64, aarch64 and riscv64 share.
errnos! {
    1 EPERM 2 ENOENT 3 ESRCH 4 EINTR 5 EIO 6 ENXIO 7 E2BIG 8 ENOEXEC 9 EBADF 10 ECHILD 11 EAGAIN 12 ENOMEM
    13 EACCES 14 EFAULT 15 ENOTBLK 16 EBUSY 17 EEXIST 18 EXDEV 19 ENODEV 20 ENOTDIR 21 EISDIR 22 EINVAL
    23 ENFILE 24 EMFILE 25 ENOTTY 26 ETXTBSY 27 EFBIG 28 ENOSPC 29 ESPIPE 30 EROFS 31 EMLINK 32 EPIPE
    33 EDOM 34 ERANGE 35 EDEADLK 36 ENAMETOOLONG 37 ENOLCK 38 ENOSYS 39 ENOTEMPTY 40 ELOOP 42 ENOMSG
    43 EIDRM 60 ENOSTR 61 ENODATA 62 ETIME 63 ENOSR 66 EREMOTE 67 ENOLINK 70 ECOMM 71 EPROTO 74 EBADMSG
    75 EOVERFLOW 76 ENOTUNIQ 77 EBADFD 84 EILSEQ 85 ERESTART 86 ESTRPIPE 87 EUSERS 88 ENOTSOCK
    89 EDESTADDRREQ 90 EMSGSIZE 91 EPROTOTYPE 92 ENOPROTOOPT 93 EPROTONOSUPPORT 94 ESOCKTNOSUPPORT
    95 ENOTSUP 96 EPFNOSUPPORT 97 EAFNOSUPPORT 98 EADDRINUSE 99 EADDRNOTAVAIL 100 ENETDOWN
    101 ENETUNREACH 102 ENETRESET 103 ECONNABORTED 104 ECONNRESET 105 ENOBUFS 106 EISCONN 107 ENOTCONN
    108 ESHUTDOWN 109 ETOOMANYREFS 110 ETIMEDOUT 111 ECONNREFUSED 112 EHOSTDOWN 113 EHOSTUNREACH
    114 EALREADY 115 EINPROGRESS 116 ESTALE 117 EUCLEAN 122 EDQUOT 125 ECANCELED 126 ENOKEY
    127 EKEYEXPIRED 128 EKEYREVOKED 129 EKEYREJECTED 130 EOWNERDEAD 131 ENOTRECOVERABLE 132 ERFKILL
    133 EHWPOISON
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "E#{}", self.0),
        }
    }
}

impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallResult::Ok => f.pad("ok"),
            CallResult::Failed(errno) => errno.fmt(f),
            CallResult::Unknown => f.pad("unknown"),
        }
    }
}

impl FromStr for CallResult {
    type Err = ParseErrnoError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ok" => Ok(CallResult::Ok),
            "unknown" => Ok(CallResult::Unknown),
            name => name.parse().map(CallResult::Failed),
        }
    }
}

macro_rules! as_text {
    ($type:ident, $description:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "description": $description, "type": "string" })
            }
        }
    };
}

as_text!(Errno, "The name of an error of a system call: EACCES.");
as_text!(
    CallResult,
    "How a system call ended: ok, the name of its error, or unknown."
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for number in 1..200 {
            let errno = Errno(number);
            assert_eq!(errno.to_string().parse(), Ok(errno));
            let json = serde_json::to_string(&CallResult::Failed(errno)).unwrap();
            assert_eq!(
                serde_json::from_str::<CallResult>(&json).unwrap(),
                CallResult::Failed(errno)
            );
        }
        assert_eq!(Errno(13).to_string(), "EACCES");
        assert_eq!("ok".parse(), Ok(CallResult::Ok));
        assert_eq!("nonsense".parse::<CallResult>(), Err(ParseErrnoError));
    }

    #[test]
    fn returns_are_told_apart() {
        assert_eq!(CallResult::from_return(0), CallResult::Ok);
        assert_eq!(CallResult::from_return(-2), CallResult::Failed(Errno(2)));
        assert_eq!(CallResult::from_return(-4096), CallResult::Ok);
    }
}
