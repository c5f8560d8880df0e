"""What goes into the model and what comes out of it: templates, text streams, attachments."""
