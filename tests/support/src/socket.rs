//! A client of the WebSocket door.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::{Client, within};

/// How long anything may take that is waited for.
const LIMIT: Duration = Duration::from_secs(90);

/// One connection.
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
    /// Messages that were read while another was waited for.
    unread: Vec<Value>,
}

/// Everything that was told of one call.
#[derive(Debug)]
pub struct Told {
    /// In their order.
    pub events: Vec<Value>,
    /// Its last message.
    pub last: Value,
}

impl Told {
    /// What its events told of one channel.
    pub fn output(&self, channel: &str) -> String {
        let of_channel = self.events.iter().filter(|event| event["event"] == channel);
        of_channel.map(|event| event["data"]["data"].as_str().unwrap_or_default()).collect()
    }

    /// What the call answered.
    ///
    /// # Panics
    /// When it failed.
    #[track_caller]
    pub fn result(&self) -> &Value {
        assert_eq!(self.last["type"], "result", "{}", self.last);
        &self.last["result"]
    }

    /// The problem with which it failed.
    ///
    /// # Panics
    /// When it failed with another code, or not at all.
    #[track_caller]
    pub fn problem(&self, code: &str) -> &Value {
        assert_eq!((&self.last["type"], &self.last["error"]["code"]), (&json!("error"), &json!(code)), "{}", self.last);
        &self.last["error"]
    }
}

impl Client {
    /// Opens a connection with these headers.
    ///
    /// # Errors
    /// What the Worker answered instead.
    ///
    /// # Panics
    /// When it cannot be reached.
    pub async fn upgrade(&self, headers: &[(&'static str, String)]) -> Result<(Socket, Response), Box<Error>> {
        let address = self.base().strip_prefix("http://").unwrap_or(self.base());
        let connection = TcpStream::connect(address).await.expect("the Worker listens");
        self.upgrade_over(connection, headers).await
    }

    async fn upgrade_over(
        &self,
        connection: TcpStream,
        headers: &[(&'static str, String)],
    ) -> Result<(Socket, Response), Box<Error>> {
        let url = format!("{}/ws", self.base().replacen("http://", "ws://", 1));
        let mut request = url.into_client_request().expect("an address of this machine");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        let most = 64 * 1024 * 1024;
        let config = WebSocketConfig::default().max_message_size(Some(most)).max_frame_size(Some(most));
        let (stream, response) = client_async_with_config(request, connection, Some(config)).await.map_err(Box::new)?;
        Ok((Socket { stream, unread: Vec::new() }, response))
    }

    /// A connection that presented this client's key, and may call.
    ///
    /// # Panics
    /// When it may not.
    pub async fn socket(&self) -> Socket {
        let address = self.base().strip_prefix("http://").unwrap_or(self.base());
        self.ready_over(TcpStream::connect(address).await.expect("the Worker listens")).await
    }

    /// The same, of a machine that keeps little of what is not read; others keep tens of megabytes.
    ///
    /// # Panics
    /// When it may not.
    pub async fn narrow_socket(&self) -> Socket {
        let address = self.base().strip_prefix("http://").unwrap_or(self.base());
        let connection = TcpSocket::new_v4().expect("a socket");
        connection.set_recv_buffer_size(64 * 1024).expect("a size that every machine allows");
        let address = address.parse().expect("an address of this machine");
        self.ready_over(connection.connect(address).await.expect("the Worker listens")).await
    }

    async fn ready_over(&self, connection: TcpStream) -> Socket {
        let authorization = format!("Bearer {}", self.key().unwrap_or_default());
        let upgraded = self.upgrade_over(connection, &[("authorization", authorization)]).await;
        let (mut socket, _) = upgraded.expect("an upgrade");
        let ready = socket.next().await;
        assert_eq!(ready["type"], "ready", "{ready}");
        socket
    }
}

impl Socket {
    /// Sends a message.
    pub async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    /// Sends a text frame.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.expect("an open connection");
    }

    /// Sends a text frame; `false` where the connection is gone, or nothing of it is taken for 30 seconds.
    pub async fn try_send_text(&mut self, text: &str) -> bool {
        let sent = tokio::time::timeout(Duration::from_secs(30), self.stream.send(Message::text(text))).await;
        sent.is_ok_and(|sent| sent.is_ok())
    }

    /// Sends a binary frame.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.send(Message::binary(bytes.to_vec())).await.expect("an open connection");
    }

    /// Sends an `invoke`.
    pub async fn invoke(&mut self, id: &str, tool: &str, params: &Value) {
        self.send(&json!({ "type": "invoke", "id": id, "tool": tool, "params": params })).await;
    }

    /// Makes a call and waits for its end.
    pub async fn call(&mut self, id: &str, tool: &str, params: &Value) -> Told {
        self.invoke(id, tool, params).await;
        self.end_of(id).await
    }

    /// The next message.
    ///
    /// # Panics
    /// When none comes.
    pub async fn next(&mut self) -> Value {
        if !self.unread.is_empty() {
            return self.unread.remove(0);
        }
        match self.frame().await {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
            Err(closed) => panic!("the connection is closed: {closed:?}"),
        }
    }

    /// The next text frame, or the code and the reason with which the connection was closed.
    async fn frame(&mut self) -> Result<String, Option<(u16, String)>> {
        loop {
            match within("a message", LIMIT, self.stream.next()).await {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map(|frame| (frame.code.into(), frame.reason.to_string())));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Everything of a call up to its end; messages of others are kept.
    pub async fn end_of(&mut self, id: &str) -> Told {
        let mut others = Vec::new();
        let mut events = Vec::new();
        let last = loop {
            let message = self.next().await;
            match (message["id"] == id, message["type"].as_str()) {
                (true, Some("event")) => events.push(message),
                (true, _) => break message,
                (false, _) => others.push(message),
            }
        };
        others.append(&mut self.unread);
        self.unread = others;
        Told { events, last }
    }

    /// The next event of a call; messages of others are kept.
    pub async fn event_of(&mut self, id: &str) -> Value {
        let mut others = Vec::new();
        let event = loop {
            let message = self.next().await;
            if message["id"] == id {
                break message;
            }
            others.push(message);
        };
        others.append(&mut self.unread);
        self.unread = others;
        event
    }

    /// The ends of these calls, by their ids.
    pub async fn ends_of(&mut self, ids: &[String]) -> BTreeMap<String, Told> {
        let mut ends = BTreeMap::new();
        for id in ids {
            ends.insert(id.clone(), self.end_of(id).await);
        }
        ends
    }

    /// What the connection was closed with; messages before that are dropped.
    ///
    /// # Panics
    /// When it stays open.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            match self.frame().await {
                Ok(_) => {}
                Err(Some(closed)) => return closed,
                Err(None) => panic!("the connection broke off without a reason"),
            }
        }
    }

    /// Closes the connection as one should.
    pub async fn close(mut self) {
        // The other side may have been faster.
        let _ = self.stream.close(None).await;
    }
}
