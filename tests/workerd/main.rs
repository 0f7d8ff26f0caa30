//! The built Worker in real workerd against the real `sandboxd host`.
