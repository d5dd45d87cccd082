"""What tests share: a daemon runner, a raw wire client, a scripted fake broker, load generators."""
