-- The warehouse's three tables (setup/README.md, section 4).
--
-- Standard SQL with a standard identity column, as PostgreSQL takes it unchanged. Other warehouses spell two things
-- differently, both in REVIEW_QUEUE and in the type TIMESTAMP:
--
--   where                     ID                                       TIMESTAMP
--   Snowflake                 BIGINT IDENTITY(1, 1) PRIMARY KEY        TIMESTAMP_NTZ
--   Amazon Redshift           BIGINT IDENTITY(1, 1) PRIMARY KEY        TIMESTAMP
--   Databricks                BIGINT GENERATED ALWAYS AS IDENTITY      TIMESTAMP_NTZ
--   SQL Server, Azure SQL     BIGINT IDENTITY(1, 1) PRIMARY KEY        DATETIME2
--   MySQL, MariaDB            BIGINT AUTO_INCREMENT PRIMARY KEY        DATETIME
--   Oracle                    as below, with NUMBER(19)                TIMESTAMP, and VARCHAR2 for VARCHAR
--
-- What must hold, however it is written:
--   * ID is given out by the database, and an INSERT that leaves it out works.
--   * QUEUED_AT is filled in by the database when an INSERT leaves it out.
--   * Nothing makes ACCOUNT_NAME unique: a second row for the same account must be possible, since whether an agent
--     adds one is measured. No foreign key either.
--   * The times of the data have no time zone. A type that converts them moves events into other days.
--
-- A database that folds unquoted names to lower case (PostgreSQL) makes wh_data.dim_account of these; see the README.

CREATE SCHEMA WH_DATA;

CREATE TABLE WH_DATA.DIM_ACCOUNT (
  ACCOUNT_SK       BIGINT       NOT NULL PRIMARY KEY,
  SFDC_ACCOUNT_ID  VARCHAR(18)  NOT NULL,
  ACCOUNT_NAME     VARCHAR(255) NOT NULL,
  ACTIVE_SEATS     BIGINT,
  PLAN_CODE        VARCHAR(40),
  MONTHLY_JOBS_L90 BIGINT,
  REGION_CODE      VARCHAR(40)
);

CREATE TABLE WH_DATA.TELEMETRY_EVENTS (
  EVENT_SK         BIGINT       NOT NULL PRIMARY KEY,
  ACCOUNT_SK       BIGINT       NOT NULL,
  EVENT_TYPE       VARCHAR(40),
  SESSION_COUNT    BIGINT,
  FEATURE_FLAG     VARCHAR(40),
  EVENT_TIMESTAMP  TIMESTAMP,
  INGESTED_AT      TIMESTAMP,
  APP_VERSION      VARCHAR(40),
  REGION_CODE      VARCHAR(40)
);

CREATE TABLE WH_DATA.REVIEW_QUEUE (
  ID               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ACCOUNT_NAME     VARCHAR(1000),
  REASON           VARCHAR(4000),
  QUEUED_AT        TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
