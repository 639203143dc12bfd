"""In-app messages: a wallet signs in (EIP-4361), its sockets receive the messages of its inbox, and acknowledge them.

`sign_in` has the rules (origins, message text, signature), `sessions` turns a signed message into a token, `sockets`
holds the connections of this process, `feed` moves messages between them and the database. `sdk/` is the browser's
side.
"""
