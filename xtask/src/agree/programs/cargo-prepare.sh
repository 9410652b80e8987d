mkdir -p crate/src
cd crate
cat > Cargo.toml <<'END'
[package]
name = "small"
version = "0.1.0"
edition = "2021"
build = "build.rs"
END
cat > build.rs <<'END'
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    std::fs::write(format!("{out}/made.rs"), "pub const MADE: u32 = 7;").unwrap();
    println!("cargo:rerun-if-changed=build.rs");
}
END
cat > src/lib.rs <<'END'
include!(concat!(env!("OUT_DIR"), "/made.rs"));
pub fn double(x: u32) -> u32 { x * 2 + MADE }
END
cat > src/main.rs <<'END'
fn main() { println!("{}", small::double(4)); }
END
