# Embeds experiments/*/{run.toml,expected.csv} into the binary (sim/embedded_experiments.h).
file(GLOB KVSIM_EXPERIMENT_FILES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/experiments/*/run.toml
     ${PROJECT_SOURCE_DIR}/experiments/*/expected.csv)
set(generated ${PROJECT_BINARY_DIR}/generated/embedded_experiments.cpp)
add_custom_command(
  OUTPUT ${generated}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${generated} -DFOLDER=${PROJECT_SOURCE_DIR}/experiments
          -P ${PROJECT_SOURCE_DIR}/cmake/embed_experiments.cmake
  DEPENDS ${KVSIM_EXPERIMENT_FILES} ${PROJECT_SOURCE_DIR}/cmake/embed_experiments.cmake
  COMMENT "Embedding experiments")
target_sources(kvsim_sim_objects PRIVATE ${generated})
