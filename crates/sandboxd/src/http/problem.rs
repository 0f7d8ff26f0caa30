//! A refusal on its way to becoming an answer.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use sandbox_api::{ControlError, ControlErrorCode};

/// Why a request is refused. Becomes a [`ControlError`] with the status that its code has.
#[derive(Debug)]
pub(crate) struct Problem {
    code: ControlErrorCode,
    message: String,
}

impl Problem {
    pub(crate) fn new(code: ControlErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// 400: the message begins with the name of the field.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ControlErrorCode::InvalidArguments, message)
    }

    /// 500: the caller gets a constant text, the log gets the cause.
    pub(crate) fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(%cause, "internal fault");
        Self::new(ControlErrorCode::Internal, "the daemon met a fault; its log has the cause")
    }

    /// The same about another field than the one that the message begins with.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if let Some(rest) = self.message.strip_prefix(from).filter(|rest| rest.starts_with(':')) {
            self.message = format!("{to}{rest}");
        }
        self
    }

    /// The same with more to say.
    pub(crate) fn followed_by(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn status(&self) -> StatusCode {
        match self.code {
            ControlErrorCode::Unauthenticated => StatusCode::UNAUTHORIZED,
            ControlErrorCode::InvalidArguments | ControlErrorCode::UploadAborted => StatusCode::BAD_REQUEST,
            ControlErrorCode::PathEscapes | ControlErrorCode::PermissionDenied => StatusCode::FORBIDDEN,
            ControlErrorCode::NotFound | ControlErrorCode::NotRunning => StatusCode::NOT_FOUND,
            ControlErrorCode::WrongFileType | ControlErrorCode::AlreadyExists | ControlErrorCode::UploadConflict => {
                StatusCode::CONFLICT
            }
            ControlErrorCode::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            ControlErrorCode::StaleGeneration => StatusCode::GONE,
            ControlErrorCode::LengthRequired => StatusCode::LENGTH_REQUIRED,
            ControlErrorCode::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ControlErrorCode::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            ControlErrorCode::ProcessEnded => StatusCode::CONFLICT,
            ControlErrorCode::TooManyExecs | ControlErrorCode::TooManyProcesses => StatusCode::TOO_MANY_REQUESTS,
            ControlErrorCode::NoAnswer => StatusCode::BAD_GATEWAY,
            ControlErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ControlErrorCode::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ControlErrorCode::Internal | ControlErrorCode::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid(format!("query: {}", rejection.body_text()))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let unauthenticated = self.code == ControlErrorCode::Unauthenticated;
        let mut response = super::json(status, &ControlError { code: self.code, message: self.message });
        if unauthenticated {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer with a JSON body.
pub(crate) fn json<T: serde::Serialize>(status: StatusCode, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(cause) => {
            tracing::error!(%cause, "an answer could not be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
