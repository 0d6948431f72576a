"""What all processes of an engine agree on: names, errors, the sections, and the choices that they carry."""
