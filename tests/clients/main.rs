//! Clients that are generated from openapi/openapi.json compile and work against the running Worker.
