#!/bin/sh
# Creates the gateway's roles and database; the server's image runs it once, in an empty data folder.
set -eu
psql --set=ON_ERROR_STOP=1 --set=password="$FITROUTER_PASSWORD" --set=identities="$FITROUTER_IDENTITIES_PASSWORD" \
  --username="${POSTGRES_USER:-postgres}" <<'SQL'
CREATE ROLE fitrouter LOGIN PASSWORD :'password';
CREATE ROLE fitrouter_identities LOGIN PASSWORD :'identities';
CREATE DATABASE fitrouter;
\connect fitrouter
CREATE SCHEMA fitrouter AUTHORIZATION fitrouter;
CREATE SCHEMA fitrouter_identities AUTHORIZATION fitrouter_identities;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
SQL
