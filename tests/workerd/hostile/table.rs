//! Strings that are more than strings somewhere: to a shell, a path, a database, a header, a parser.

/// `MARK` is a name that nothing has before: a file of it is the trace of a command that was run or of a path that led out.
const MARK: &str = "{MARK}";

/// In a body it becomes half of a surrogate pair, which no string of Rust can hold.
pub const SURROGATE: &str = "{SURROGATE}";

pub fn table(mark: &str) -> Vec<String> {
    let texts = [
        // Nothing, and what ends a string elsewhere.
        "",
        " \n",
        "a\0b",
        "'\"`\\",
        // Commands.
        ";touch {MARK}|touch {MARK}&touch {MARK}",
        "$(touch {MARK})`touch {MARK}`",
        "x\ntouch {MARK}\n",
        "'; touch {MARK}; '\"; touch {MARK}; \"",
        "--help",
        "-rf",
        "--upload-pack=touch {MARK}",
        "ext::sh -c touch% {MARK}",
        // Paths.
        ".",
        "..",
        "/",
        "../../../../etc/passwd",
        "//etc/passwd",
        "/workspace/../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "..\\..\\etc\\passwd",
        "out/passwd",
        "up/etc/passwd",
        "out/{MARK}",
        "up/{MARK}",
        "../{MARK}",
        "/tmp/{MARK}",
        "/proc/1/environ",
        "%00%zz?a=b#c&d;e",
        // Statements of databases.
        "x' OR 1=1 --",
        "\"; DROP TABLE audit; --",
        // Lines, headers, terminals.
        "x\r\nx-injected: yes\r\n\r\n",
        "{\"level\":\"info\"}\n{\"level\":\"info\",\"message\":\"{MARK}\"}",
        "data: {MARK}\n\nevent: result\ndata: {}\n\n",
        "\u{1b}[2J\u{7}\u{202e}\u{200b}\u{feff}\u{85}\u{2028}",
        "e\u{301}\u{1f980}\u{10ffff}",
        SURROGATE,
        // What is another type, or is one to somebody.
        "null",
        "-1e999",
        "__proto__",
        "${7*7}{{7*7}}%s%n{0}<script>alert(1)</script>",
        // Patterns.
        "**/**/**/**/*",
        "(a+)+$",
        "[",
        "a{100000}{100000}",
        // Addresses, times, tokens.
        "file:///etc/passwd",
        "http://127.0.0.1:1/{MARK}",
        "https://u:p@x@y/z",
        "9999-12-31T23:59:60Z",
        "+275760-09-13T00:00:00Z",
        "eyJhbGciOiJub25lIn0.e30.",
    ];
    let long = ["A".repeat(5000), "\u{1f980}".repeat(12_000), "../".repeat(2000), "(".repeat(500), "%".repeat(12_000)];
    texts.iter().map(|text| text.replace(MARK, mark)).chain(long).collect()
}
