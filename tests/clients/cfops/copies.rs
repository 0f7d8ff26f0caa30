//! `cfops cp`: the same bytes on the other side, or none.

use std::fs;
use std::io::Write;
use std::path::Path;

use test_support::{Sandbox, Stack};

use super::line::{Cut, Line};
use super::{Home, sha256};

const MIB: usize = 1 << 20;

/// More than one piece.
const SIZE: usize = 70 * MIB;

/// A file whose bytes differ everywhere.
fn large_file(path: &Path) -> String {
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    for word in 0..SIZE as u64 / 8 {
        file.write_all(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
    sha256(path)
}

async fn sum(sandbox: &Sandbox, path: &str) -> String {
    sandbox.sh(&format!("sha256sum {path}")).await.split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn seventy_megabytes_come_back_as_they_were_also_over_a_line_that_breaks() {
    let (stack, home) = (Stack::shared(), Home::new());
    let sandbox = stack.sandbox().await;
    let line = Line::to(stack.client().base());
    home.log_in("default", &line.url(), &stack.key);
    let (large, back) = (home.path("large"), home.path("back"));
    let expected = large_file(&large);
    let there = format!("{}:deep/large", sandbox.id);
    // The first piece breaks and begins anew; then the second one breaks and is gone on with.
    line.cut(&[Cut::Up(10 * MIB), Cut::Up(66 * MIB)]);
    home.run(&["cp", "large", &there]).ok();
    assert_eq!((line.uncut(), sum(&sandbox, "deep/large").await), (0, expected.clone()));
    assert_eq!(sandbox.sh("ls -A . deep").await, ".:\ndeep\n\ndeep:\nlarge\n", "nothing else is left there");
    line.cut(&[Cut::Down(20 * MIB), Cut::Down(MIB)]);
    let told = home.json(&["cp", &there, "back"]);
    assert_eq!((line.uncut(), told["size"].as_u64(), sha256(&back)), (0, Some(SIZE as u64), expected));
}

#[tokio::test]
async fn names_and_directories_are_those_that_were_given() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let there = |path: &str| format!("{}:{path}", sandbox.id);
    fs::write(home.path("a é?.txt"), "one").unwrap();
    fs::create_dir(home.path("folder")).unwrap();
    home.run(&["cp", "a é?.txt", &there("")]).ok();
    home.run(&["cp", "a é?.txt", &there("new/")]).ok();
    home.run(&["cp", "a é?.txt", &there("/workspace/b%20#.txt")]).ok();
    assert_eq!(sandbox.sh("cat 'a é?.txt' 'new/a é?.txt' 'b%20#.txt'").await, "oneoneone");
    home.run(&["cp", &there("b%20#.txt"), "folder"]).ok();
    assert_eq!(fs::read_to_string(home.path("folder/b%20#.txt")).unwrap(), "one");
    home.run_with(&["cp", "-", &there("in")], b"\xff\0").ok();
    assert_eq!(home.run(&["cp", &there("in"), "-"]).stdout, b"\xff\0");
    fs::write(home.path("empty"), "").unwrap();
    home.run(&["cp", "empty", &there("empty")]).ok();
    home.run(&["cp", &there("empty"), "empty-back"]).ok();
    assert_eq!(fs::read(home.path("empty-back")).unwrap(), b"");
}

#[tokio::test]
async fn what_cannot_be_copied_is_told_and_leaves_everything_as_it_was() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let there = |path: &str| format!("{}:{path}", sandbox.id);
    sandbox.sh("mkdir folder").await;
    fs::write(home.path("file"), "old").unwrap();
    home.run(&["cp", &there("nothing"), "file"]).failed(122);
    home.run(&["cp", "no-such-file", &there("x")]).failed(125);
    home.run(&["cp", "file", "other"]).failed(2);
    home.run(&["cp", &there("a"), &there("b")]).failed(2);
    home.run(&["cp", "file", &there("../x")]).failed(121);
    let told = home.run(&["cp", "file", &there("folder")]).failed(125);
    assert!(told.contains("folder/` with a slash"), "{told}");
    home.run(&["cp", "file", "no-such-sandbox:x"]).failed(122);
    assert_eq!(fs::read_to_string(home.path("file")).unwrap(), "old");
    let left: Vec<_> = fs::read_dir(home.path(".")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".cfops")), "{left:?}");
}

#[tokio::test]
async fn a_directory_goes_there_and_back() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let there = |path: &str| format!("{}:{path}", sandbox.id);
    fs::create_dir_all(home.path("project/deep")).unwrap();
    fs::write(home.path("project/deep/a b"), b"\xff\0").unwrap();
    std::os::unix::fs::symlink("deep/a b", home.path("project/link")).unwrap();
    home.run(&["cp", "project", &there("x")]).failed(125);
    home.run(&["cp", "-r", "project", &there("copy")]).ok();
    home.run(&["cp", "-r", "project", &there("")]).ok();
    home.run(&["cp", "-r", "project", &there("into/")]).ok();
    let listed = sandbox.sh("find . -name 'a b' | sort; readlink copy/link; mkfifo copy/pipe").await;
    assert_eq!(listed, "./copy/deep/a b\n./deep/a b\n./into/project/deep/a b\ndeep/a b\n");
    let told = home.json(&["cp", "-r", &there("copy"), "back"]);
    assert_eq!(told["omitted"], 1);
    assert_eq!(fs::read(home.path("back/deep/a b")).unwrap(), b"\xff\0");
    assert_eq!(fs::read_link(home.path("back/link")).unwrap(), Path::new("deep/a b"));
    home.run(&["cp", "-r", &there("copy"), "."]).ok();
    assert!(home.path("copy/deep/a b").is_file());
    assert!(home.run(&["cp", "-r", &there("copy"), "."]).failed(125).contains("Name another"), "nothing is mixed");
    home.run(&["cp", "-r", &there("nothing"), "none"]).failed(122);
    assert!(!home.path("none").exists());
}
