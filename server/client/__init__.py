"""What talks to a server, and starts one for a command that needs one."""
