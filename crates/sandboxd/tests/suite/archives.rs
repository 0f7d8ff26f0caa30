//! Archives out and in: the same tree, whatever is in it, and nothing beside it, whatever is in the archive.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::support::{Host, Reply, Sandbox, TOKEN, daemons, eventually, resident_bytes};

fn get(sandbox: &Sandbox, path: &str) -> Reply {
    sandbox.call("GET", &format!("/v1/archives/{path}"), &[], b"")
}

fn put(sandbox: &Sandbox, path: &str, archive: &[u8]) -> Reply {
    sandbox.call("PUT", &format!("/v1/archives/{path}"), &[], archive)
}

/// Makes an archive by a Python program in the sandbox that has `add(name, type, content, link)`.
fn forge(sandbox: &Sandbox, program: &str) -> Vec<u8> {
    let prelude = "
import tarfile, io, sys
t = tarfile.open('/tmp/forged', 'w', format=tarfile.GNU_FORMAT)
def add(name, type=tarfile.REGTYPE, content=b'', link='', mode=0o644):
    i = tarfile.TarInfo(name); i.type = type; i.linkname = link; i.size = len(content); i.mode = mode
    t.addfile(i, io.BytesIO(content))
";
    let command = format!(
        "rm -f /tmp/forged; cat > /tmp/forge.py <<'END'\n{prelude}{program}\nt.close()\nEND\npython3 /tmp/forge.py && mv /tmp/forged forged"
    );
    sandbox.output(&command);
    let archive = sandbox.get("forged").body;
    sandbox.output("rm forged");
    archive
}

#[test]
fn a_tree_survives_every_format() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "mkdir -p t/empty t/d; printf x > $'t/\\xff\\x01bad'; printf y > 't/a b'; printf z > $'t/new\\nline'; touch t/-rf; \
         ln -s /etc/passwd t/absolute; ln -s d t/link; head -c 3000000 /dev/urandom > t/d/random; yes | head -c 2000000 > t/d/dull; \
         chmod 750 t/d/dull; touch -d 2001-02-03 t/d/dull; printf long > t/d/$(printf 'n%.0s' {1..200}); \
         mkdir -p t/$(printf 'p%.0s' {1..90})/$(printf 'q%.0s' {1..90}); find t/p* -name 'q*' -exec touch {}/file ';'; \
         ln -s $(printf 'l%.0s' {1..150}) t/longlink",
    );
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum; find . -printf '%P %y %m %l\\n' | sort | grep -v '^ d' | sha256sum; stat -c %Y d/dull";
    let before = sandbox.output(&format!("cd t; {sums}"));
    for (format, kind) in [("tar", "x-tar"), ("tar.gz", "gzip"), ("tar.zst", "zstd")] {
        let reply = get(&sandbox, &format!("t?format={format}"));
        assert_eq!((reply.status, reply.header("content-type")), (200, format!("application/{kind}").as_str()));
        assert_eq!(reply.header("x-archive-omitted"), "0");
        let unpacked = put(&sandbox, "u", &reply.body);
        assert_eq!(unpacked.status, 200, "{format}: {}", unpacked.text());
        assert_eq!(
            unpacked.json(),
            json!({"files": 8, "directories": 4, "symlinks": 3, "bytes": 5_000_007}),
            "{format}"
        );
        assert_eq!(sandbox.output(&format!("cd u; {sums}")), before, "{format}");
        // Unpacking over it replaces.
        assert_eq!(put(&sandbox, "u", &reply.body).status, 200);
        assert_eq!(sandbox.output(&format!("cd u; {sums}; find . -name '.upload*'; cd ..; rm -r u")), before);
        sandbox.put("archive", &reply.body);
        if format != "tar.zst" {
            assert_eq!(sandbox.output("mkdir v; tar xf archive -C v; diff -r --no-dereference t v; rm -r v"), "");
        }
    }
    // What other programs pack is taken.
    sandbox.output("tar czf archive -C t .; tar cf archive.pax --format=pax -C t .");
    for archive in ["archive", "archive.pax"] {
        assert_eq!(put(&sandbox, "u", &sandbox.get(archive).body).status, 200);
        assert_eq!(sandbox.output(&format!("cd u; {sums}; cd ..; rm -r u")), before, "{archive}");
    }
}

#[test]
fn what_is_excluded_is_not_there() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p p/node_modules/x p/src/deep p/target/a; touch p/node_modules/x/y p/src/{a.rs,b.log} p/src/deep/c.log p/target/a/b; mkfifo p/pipe");
    let reply = get(&sandbox, "p?format=tar&exclude=node_modules&exclude=src/**/*.log&exclude=target/**");
    assert_eq!((reply.status, reply.header("x-archive-omitted")), (200, "1"));
    sandbox.put("archive", &reply.body);
    assert_eq!(sandbox.output("tar tf archive"), "src/\nsrc/a.rs\nsrc/deep/\ntarget/\n");
    let whole = get(&sandbox, "?format=tar&exclude=p&exclude=archive");
    assert_eq!((whole.status, whole.body.iter().all(|byte| *byte == 0)), (200, true), "an empty archive");
    get(&sandbox, "p?exclude=[").refused(400, "invalid_arguments", "exclude");
    get(&sandbox, "p?format=zip").refused(400, "invalid_arguments", "format");
    get(&sandbox, "p?excludes=a").refused(400, "invalid_arguments", "excludes");
    get(&sandbox, "p/src/a.rs").refused(409, "wrong_file_type", "path");
    get(&sandbox, "none").refused(404, "not_found", "path");
}

#[test]
fn what_may_not_be_read_is_named_before_anything_is_sent() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p d/sub; touch d/sub/closed; chmod 000 d/sub/closed");
    get(&sandbox, "d").refused(403, "permission_denied", "sub/closed");
    assert_eq!(get(&sandbox, "d?exclude=closed").status, 200);
    sandbox.output("chmod 000 d/sub");
    get(&sandbox, "d").refused(403, "permission_denied", "sub");
    sandbox.output("chmod 700 d/sub; cd d; for level in $(seq 150); do mkdir e; cd e; done");
    get(&sandbox, "d").refused(400, "invalid_arguments", "128 directories");
}

#[test]
fn no_archive_writes_outside_its_directory() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir d; echo kept > kept");
    let cases = [
        ("add('../out', content=b'x')", "path_escapes"),
        ("add('/workspace/out', content=b'x')", "path_escapes"),
        ("add('a/../../out', content=b'x')", "path_escapes"),
        ("add('l', tarfile.SYMTYPE, link='..'); add('l/out', content=b'x')", "path_escapes"),
        ("add('l', tarfile.SYMTYPE, link='/workspace'); add('l/out', content=b'x')", "path_escapes"),
        ("add('l', tarfile.SYMTYPE, link='/tmp'); add('l/out', content=b'x')", "path_escapes"),
        ("add('l', tarfile.SYMTYPE, link='..'); add('l/out', tarfile.DIRTYPE)", "path_escapes"),
        ("add('h', tarfile.LNKTYPE, link='../kept'); add('h', content=b'x')", "path_escapes"),
        ("add('h', tarfile.LNKTYPE, link='/workspace/kept')", "path_escapes"),
        ("add('l', tarfile.SYMTYPE, link='..'); add('h', tarfile.LNKTYPE, link='l/kept')", "path_escapes"),
        ("add('n', tarfile.CHRTYPE)", "invalid_arguments"),
        ("add('n', tarfile.BLKTYPE)", "invalid_arguments"),
        ("add('n', tarfile.FIFOTYPE)", "invalid_arguments"),
    ];
    for (program, code) in cases {
        let archive = forge(&sandbox, program);
        let reply = put(&sandbox, "d", &archive);
        assert_eq!(reply.json()["code"], code, "{program}: {}", reply.text());
    }
    assert_eq!(sandbox.output("ls; cat kept; ls -A /tmp | grep -v forge; true"), "d\nkept\nkept\n");
    // A file over a link replaces the link, not what it leads to.
    let archive = forge(&sandbox, "add('s', tarfile.SYMTYPE, link='../kept'); add('s', content=b'x', mode=0o4755)");
    assert_eq!(put(&sandbox, "e", &archive).status, 200);
    assert_eq!(sandbox.output("cat kept e/s; stat -c %a%F e/s"), "kept\nx755regular file\n", "without the set-id bit");
    let archive = forge(&sandbox, "add('a', content=b'1'); add('b', tarfile.LNKTYPE, link='a')");
    assert_eq!(put(&sandbox, "h", &archive).json()["files"], 2);
    assert_eq!(sandbox.output("stat -c %h h/a").trim(), "2");
    put(&sandbox, "../out", &archive).refused(403, "path_escapes", "path");
}

#[test]
fn bombs_and_damage_are_refused_within_bounds() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let daemon = daemons(&host)[0];
    sandbox.output("mkdir z; truncate -s 300M z/zeros; tar cz -C z -f bomb.tgz .; rm -r z");
    let bomb = sandbox.get("bomb.tgz").body;
    put(&sandbox, "d?maxBytes=1000000", &bomb).refused(413, "payload_too_large", "archive");
    assert_eq!(sandbox.output("find d -type f | wc -l").trim(), "0");
    // A name of a gigabyte, which a careless reader takes into memory.
    sandbox.output("python3 -c \"import tarfile;i=tarfile.TarInfo('././@LongLink');i.type=b'L';i.size=1<<30;open('long','wb').write(i.tobuf(tarfile.GNU_FORMAT))\"; truncate -s 200M long; gzip -1 long");
    put(&sandbox, "d", &sandbox.get("long.gz").body).refused(413, "payload_too_large", "name");
    assert!(resident_bytes(daemon) < 60 << 20, "{}", resident_bytes(daemon));
    put(&sandbox, "d", b"").refused(400, "invalid_arguments", "empty");
    assert_eq!(put(&sandbox, "d", &[0; 1024]).status, 200, "an archive without entries");
    put(&sandbox, "d", b"hello").refused(400, "invalid_arguments", "archive");
    put(&sandbox, "d", &[b'x'; 5000]).refused(400, "invalid_arguments", "archive");
    sandbox.output("mkdir t; seq 100000 > t/a; seq 100000 > t/b");
    for format in ["tar", "tar.gz", "tar.zst"] {
        let archive = get(&sandbox, &format!("t?format={format}")).body;
        let reply = put(&sandbox, "half", &archive[..archive.len() / 3]);
        reply.refused(400, "invalid_arguments", "archive");
        for position in (0..archive.len()).step_by(archive.len() / 60 + 1) {
            let mut damaged = archive.clone();
            damaged[position] ^= 0xff;
            // Whatever becomes of it, it is an answer.
            let reply = put(&sandbox, "damaged", &damaged);
            assert!([200, 400, 403, 409, 413].contains(&reply.status), "{format} at {position}: {}", reply.text());
        }
    }
    assert_eq!(sandbox.output("find half damaged -name '.upload*' | wc -l").trim(), "0");
}

#[test]
fn an_archive_that_breaks_off_says_what_was_written() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir t; seq 200000 > t/a; seq 200000 > t/b");
    let archive = get(&sandbox, "t?format=tar").body;
    let cut = archive.len() - 500_000;
    let reply = put(&sandbox, "u", &archive[..cut]);
    reply.refused(400, "invalid_arguments", "1 files");
    assert_eq!(sandbox.output("ls -A u").trim(), "a");
    // The caller leaves in the middle: what is whole stays, nothing else.
    let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
    write!(
        stream,
        "PUT {}/v1/archives/v HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n",
        sandbox.prefix,
        archive.len()
    )
    .expect("the head");
    stream.write_all(&archive[..cut]).expect("a part");
    eventually("a part is unpacked", || sandbox.output("ls -A v 2>/dev/null | wc -l").trim() == "2");
    drop(stream);
    eventually("the rest is gone", || sandbox.output("ls -A v").trim() == "a");
}

#[test]
fn large_archives_go_both_ways_with_flat_memory() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let daemon = daemons(&host)[0];
    sandbox.output("mkdir t s; head -c 80000000 /dev/urandom > t/f; for i in 1 2; do cp t/f t/f$i; done; head -c 12000000 t/f > s/f2");
    sandbox.output("mkdir t/many; cd t/many; touch {1..3000}");
    let mut peak = 0;
    // Packing is slow without optimization, so less of it.
    for (directory, format, files) in [("t", "tar", 3003), ("s", "tar.zst", 1), ("s", "tar.gz", 1)] {
        let reply = get(&sandbox, &format!("{directory}?format={format}"));
        peak = peak.max(resident_bytes(daemon));
        assert!(reply.body.len() > files / 3000 * 228_000_000 + 12_000_000, "{format} {}", reply.body.len());
        let unpacked = put(&sandbox, "u", &reply.body);
        assert_eq!(unpacked.json()["files"], files, "{}", unpacked.text());
        peak = peak.max(resident_bytes(daemon));
        assert_eq!(sandbox.output(&format!("cmp {directory}/f2 u/f2; rm -r u")), "");
    }
    assert!(peak < 60 << 20, "{peak} bytes in a debug build");
}

#[test]
fn a_reader_that_stalls_holds_up_its_own_archive_only() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir t; truncate -s 100M t/f");
    let begin = || {
        let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
        write!(
            stream,
            "GET {}/v1/archives/t?format=tar HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n\r\n",
            sandbox.prefix
        )
        .expect("the request");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        (stream, head)
    };
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let (stream, head) = begin();
        assert_eq!(&head, b"HTTP/1.1 200");
        stalled.push(stream);
    }
    get(&sandbox, "t?format=tar").refused(503, "unavailable", "archives");
    sandbox.put("f", b"1");
    assert_eq!(sandbox.output("cat f"), "1");
    let mut rest = Vec::new();
    stalled.remove(0).read_to_end(&mut rest).expect("the rest comes when it is wanted");
    assert!(rest.len() > 100 << 20);
    drop(stalled);
    eventually("places are free again", || get(&sandbox, "t?format=tar&exclude=f").status == 200);
}

#[test]
fn an_archive_of_what_shrinks_meanwhile_is_not_taken_for_whole() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir t; truncate -s 300M t/f");
    let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
    write!(
        stream,
        "GET {}/v1/archives/t?format=tar HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n\r\n",
        sandbox.prefix
    )
    .expect("the request");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
    sandbox.output("truncate -s 0 t/f");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the last chunk would say that this is all of {} bytes", rest.len());
}
