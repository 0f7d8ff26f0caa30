//! Somebody outside of the containers who is told by every command that it ran, so that what callers are told can be held against that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use test_support::Sandbox;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// How often each command ran, by its name.
#[derive(Clone, Default)]
pub struct Witness(Arc<Mutex<HashMap<String, u32>>>);

impl Witness {
    /// Begins to listen. Gives the shell command with which what runs in any sandbox tells its `NAME`; what it was answered is in `line`.
    pub async fn listen(&self, sandbox: &Sandbox) -> String {
        let host = gateway(sandbox).await;
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = self.0.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let (reader, mut writer) = connection.into_split();
                    if let Ok(Some(name)) = BufReader::new(reader).lines().next_line().await {
                        *seen.lock().unwrap().entry(name).or_default() += 1;
                        // The command may be gone by now.
                        let _ = writer.write_all(b"seen\n").await;
                    }
                });
            }
        });
        format!("exec 3<>/dev/tcp/{host}/{port}; echo $NAME >&3; read -r line <&3")
    }

    /// How often the command of that name ran.
    pub fn count(&self, name: &str) -> u32 {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

/// Where a container reaches the machine that it runs on: its gateway, as a hexadecimal number in the machine's byte order.
async fn gateway(sandbox: &Sandbox) -> std::net::Ipv4Addr {
    let told = sandbox.sh("awk '$2 == \"00000000\" {print $3}' /proc/net/route").await;
    u32::from_str_radix(told.trim(), 16).unwrap().to_ne_bytes().into()
}
