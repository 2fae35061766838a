"""The pages of the hub: a viewer for people, and `bridge.js`, the app client for developers."""
