//! The entry's bytes are the same fields in Rust, C++, SystemVerilog and Python: each program reads the same bytes, field by field, by the
//! names of the contract.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use doorbell_contract::HwNicEntry;
use doorbell_nic::link::Draw;

/// Records that are read: each bit once, and random ones.
fn records() -> Vec<[u8; 64]> {
    let mut draw = Draw::new(1);
    let one = (0..512).map(|bit| {
        let mut bytes = [0; 64];
        bytes[bit / 8] = 1 << (bit % 8);
        bytes
    });
    let random: Vec<[u8; 64]> = (0..64).map(|_| std::array::from_fn(|_| draw.bits() as u8)).collect();
    one.chain(random).collect()
}

fn lines(program: &mut Command) -> Vec<String> {
    let output = program
        .output()
        .unwrap_or_else(|error| panic!("{program:?}: {error}; `cargo xtask setup` installs it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Each record as Rust has it: its fields in hexadecimal.
fn expected() -> Vec<String> {
    let of = |bytes: &[u8; 64]| {
        let entry: HwNicEntry = bytemuck::pod_read_unaligned(bytes);
        HwNicEntry::FIELDS.map(|field| format!("{:x}", (field.get)(&entry))).join(" ")
    };
    records().iter().map(of).collect()
}

fn hex(bytes: &[u8; 64]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn entries_are_the_same_in_cpp() {
    let directory = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "#include \"doorbell_contract.h\"\n#include <cstdio>\n#include <cstring>\nint main() {\n",
    );
    for bytes in records() {
        let list = bytes.map(|byte| byte.to_string()).join(",");
        let _ = writeln!(
            text,
            "{{ const unsigned char b[64] = {{{list}}}; doorbell_hw_nic_entry e; std::memcpy(&e, b, 64);"
        );
        let values =
            HwNicEntry::FIELDS.map(|field| format!("(unsigned long long)e.{}", field.name)).join(", ");
        let _ = writeln!(
            text,
            "std::printf(\"{}\\n\", {values}); }}",
            ["%llx"; HwNicEntry::FIELDS.len()].join(" ")
        );
    }
    let (source, program) = (directory.path().join("entry.cpp"), directory.path().join("entry"));
    std::fs::write(&source, text + "}\n").unwrap();
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    lines(
        Command::new(compiler)
            .arg("-std=c++17")
            .arg("-I")
            .arg(root().join("contract"))
            .arg(&source)
            .arg("-o")
            .arg(&program),
    );
    assert_eq!(lines(&mut Command::new(program)), expected());
}

#[test]
fn entries_are_the_same_in_systemverilog() {
    let directory = tempfile::tempdir().unwrap();
    let mut text =
        String::from("module entry_tb;\n  import desc_pkg::*;\n  hw_nic_entry_t e;\n  initial begin\n");
    for bytes in records() {
        let mut reversed = bytes;
        reversed.reverse();
        let values = HwNicEntry::FIELDS.map(|field| format!("e.{}", field.name)).join(", ");
        let _ = writeln!(text, "    e = 512'h{};", hex(&reversed));
        let _ =
            writeln!(text, "    $display(\"{}\", {values});", ["%0h"; HwNicEntry::FIELDS.len()].join(" "));
    }
    let (source, program) = (directory.path().join("entry_tb.sv"), directory.path().join("entry_tb.vvp"));
    std::fs::write(&source, text + "  end\nendmodule\n").unwrap();
    let package = root().join("rtl/desc_pkg.sv");
    lines(Command::new("iverilog").arg("-g2012").arg("-o").arg(&program).arg(package).arg(&source));
    assert_eq!(lines(Command::new("vvp").arg("-n").arg(&program)), expected());
}

#[test]
fn entries_are_the_same_in_python() {
    let mut text = String::from(
        "import sys, dataclasses\nsys.dont_write_bytecode = True\nsys.path.insert(0, sys.argv[1])\n",
    );
    // The module alone: its package needs cocotb.
    text += "from contract import HwNicEntry\nfor line in sys.argv[2:]:\n";
    text += "    data = bytes.fromhex(line)\n    entry = HwNicEntry.unpack(data)\n    assert entry.pack() == data\n";
    let values = HwNicEntry::FIELDS.map(|field| format!("entry.{}", field.name)).join(", ");
    let _ = writeln!(text, "    print(' '.join(f'{{value:x}}' for value in [{values}]))");
    let directory = root().join("tb/cocotb/doorbell");
    let records = records();
    let python = Command::new("python3")
        .arg("-c")
        .arg(text)
        .arg(directory)
        .args(records.iter().map(hex))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&python.stdout), String::from_utf8_lossy(&python.stderr));
    assert!(python.status.success(), "{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), expected());
}
