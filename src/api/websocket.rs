//! The upgrade to a WebSocket, whose object takes over from there.

use std::time::Duration;

use worker::{Request, Response};

use super::rest::{Door, Shared, header};
use crate::call::CallHead;
use crate::connection::actor::REQUEST_ID_HEADER;
use crate::connection::protocols;
use crate::error::{Error, ErrorCode, Result};
use crate::tenant::credential::Presented;
use crate::workers::fetch::{self, Destination, Outgoing};
use crate::workers::internal::{self, CONNECTION_BINDING, ORIGIN, namespace};
use crate::workers::platform::uuid;

/// Until the connection's object has taken it.
const DEADLINE: Duration = Duration::from_secs(10);

impl Door {
    /// Opens a connection. A key that is in the headers is looked at before; one that is not there comes in the first message.
    pub(super) async fn websocket(&self, shared: &Shared, request: &Request, head: CallHead) -> Result<Response> {
        let offered = header(request, "sec-websocket-protocol");
        let offered = offered.as_deref().and_then(protocols::bearer);
        let presented = match (&head.presented.authorization, &offered) {
            (None, Some(token)) => Presented { authorization: Some(format!("Bearer {token}")), ..head.presented },
            _ => head.presented,
        };
        let head = CallHead { presented, ..head };
        // Who calls is decided first, where that is told here at all.
        if head.presented.authorization.is_some() {
            let answered = shared.registry.identify(&*self.backend, &head).await;
            self.standing.set(answered.standing);
            answered.result?;
        }
        let is_upgrade = header(request, "upgrade").is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
        if !is_upgrade {
            return Err(Error::new(ErrorCode::UpgradeRequired, "this path speaks WebSocket: send Upgrade: websocket"));
        }
        let mut headers = vec![("upgrade", "websocket".to_owned()), (REQUEST_ID_HEADER, self.request_id.clone())];
        let Presented { authorization, tenant } = head.presented;
        headers.extend(authorization.map(|authorization| ("authorization", authorization)));
        headers.extend(tenant.map(|tenant| ("x-tenant", tenant)));
        let objects = namespace(self.backend.env(), CONNECTION_BINDING)?;
        let outgoing = Outgoing { method: "GET", url: format!("{ORIGIN}/"), headers, body: None, deadline: DEADLINE };
        let response = fetch::send(Destination::Object(&objects, &uuid()), outgoing).await;
        let response = response.map_err(|error| internal::told(error, Error::internal))?;
        let status = response.status();
        let socket = Response::from(response)
            .websocket()
            .ok_or_else(|| Error::internal(format!("the connection's object answered {status} without a socket")))?;
        let response = Response::from_websocket(socket).map_err(Error::internal)?;
        if offered.is_some() {
            let headers = response.headers();
            headers.set("sec-websocket-protocol", protocols::BEARER).map_err(Error::internal)?;
        }
        Ok(response)
    }
}
