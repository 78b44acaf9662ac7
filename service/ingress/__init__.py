"""The ingress replica: HTTP and text on one side, one handle call per request to an engine on the other."""
