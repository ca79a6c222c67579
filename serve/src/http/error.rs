//! Errors as the endpoints tell them: JSON, with what was wrong and what to do.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::engine::Refused;

/// An answer that says what was wrong.
#[derive(Debug)]
pub struct Wrong {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// Which field, if it was one.
    field: Option<String>,
}

impl Wrong {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Wrong {
        Wrong { status, kind, message: message.into(), field: None }
    }

    /// 400.
    pub fn request(message: impl Into<String>) -> Wrong {
        Wrong::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400, of a field.
    pub fn field(field: &str, message: impl Into<String>) -> Wrong {
        Wrong { field: Some(field.into()), ..Wrong::request(message) }
    }

    /// 401.
    pub fn key() -> Wrong {
        let message = "the API key is wrong or missing; send Authorization: Bearer KEY";
        Wrong::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
    }

    /// 404.
    pub fn missing(message: impl Into<String>) -> Wrong {
        Wrong::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 405.
    pub fn method() -> Wrong {
        let message = "this endpoint takes another method; see docs/serve.md";
        Wrong::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408.
    pub fn slow() -> Wrong {
        let message = "the request did not come to its end in time; send it whole";
        Wrong::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }

    /// 503.
    pub fn busy() -> Wrong {
        let message = "too many long requests come at a time; send it again later, or in parts";
        Wrong::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
    }

    /// 503: the server is shutting down.
    pub fn ending() -> Wrong {
        let message = "the server ends, and this may not have been done; ask again once one is there";
        Wrong::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
    }

    /// 409.
    pub fn conflict(message: impl Into<String>) -> Wrong {
        Wrong::new(StatusCode::CONFLICT, "conflict_error", message)
    }

    /// 413.
    pub fn large(most: usize) -> Wrong {
        let message =
            format!("the request is longer than {most} bytes; send a shorter one, or raise --max-body");
        Wrong::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 500.
    pub fn failed(message: impl Into<String>) -> Wrong {
        Wrong::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }
}

impl From<Refused> for Wrong {
    fn from(refused: Refused) -> Wrong {
        match refused {
            Refused::Full => Wrong::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "too many requests wait for room; send it again later",
            ),
            Refused::Over => Wrong::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable_error",
                "the engine has ended; /health says why",
            ),
        }
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let Wrong { status, kind, message, field } = self;
        let told = json!({
            "error": { "message": message, "type": kind, "param": field, "code": status.as_u16() },
        });
        let mut response = (status, Json(told)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
