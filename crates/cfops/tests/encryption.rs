//! TLS: which certificates are trusted, and that a key goes nowhere before one was.
//!
//! What listens here answers one list of tools and is no service; what answers are made of is tested with the real one.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: r1\r\ncontent-length: 28\r\n\
    connection: close\r\n\r\n{\"tools\": [{\"name\": \"one\"}]}";

/// A certificate for `localhost`, where it listens with it, and what it is sent.
struct Encrypted {
    certificate: String,
    url: String,
    received: Arc<Mutex<Vec<u8>>>,
}

fn encrypted() -> Encrypted {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate is made");
    let certificate = made.cert.pem();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let chain = vec![CertificateDer::from(made.cert.der().to_vec())];
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key.into()));
    let config = Arc::new(config.expect("the certificate fits its key"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("https://localhost:{}", listener.local_addr().expect("it has an address").port());
    let received = Arc::new(Mutex::new(Vec::new()));
    let heard = received.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).expect("the configuration is whole");
            let mut stream = StreamOwned::new(connection, client);
            let mut buffer = [0; 4096];
            if let Ok(read) = stream.read(&mut buffer) {
                heard.lock().expect("no other thread panicked").extend_from_slice(&buffer[..read]);
                let _ = stream.write_all(ANSWER.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    Encrypted { certificate, url, received }
}

fn tools(url: &str, folder: &std::path::Path, trusted: Option<&std::path::Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cfops"));
    command.arg("tools").env_clear().env("HOME", folder).env("CFOPS_URL", url).env("CFOPS_KEY", "some-key");
    if let Some(file) = trusted {
        command.env("SSL_CERT_FILE", file);
    }
    command.output().expect("cfops starts")
}

#[test]
fn a_certificate_that_the_machine_trusts_is_taken() {
    let (server, folder) = (encrypted(), tempfile::tempdir().expect("there is room"));
    let file = folder.path().join("own.pem");
    std::fs::write(&file, &server.certificate).expect("there is room");
    let output = tools(&server.url, folder.path(), Some(&file));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("one"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let received = server.received.lock().expect("no other thread panicked");
    assert!(String::from_utf8_lossy(&received).to_lowercase().contains("authorization: bearer some-key"));
}

#[test]
fn another_is_refused_before_a_key_is_sent() {
    let (server, folder) = (encrypted(), tempfile::tempdir().expect("there is room"));
    let output = tools(&server.url, folder.path(), None);
    assert_eq!(output.status.code(), Some(123), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ertificate"));
    assert!(server.received.lock().expect("no other thread panicked").is_empty());
}
