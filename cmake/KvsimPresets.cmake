# Embeds models/presets/*/*.toml into the binary as one generated source (models/embedded_presets.h).
file(GLOB_RECURSE KVSIM_PRESET_FILES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/models/presets/*.toml)
set(generated ${PROJECT_BINARY_DIR}/generated/embedded_presets.cpp)
add_custom_command(
  OUTPUT ${generated}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${generated} -DFOLDER=${PROJECT_SOURCE_DIR}/models/presets
          -P ${PROJECT_SOURCE_DIR}/cmake/embed_presets.cmake
  DEPENDS ${KVSIM_PRESET_FILES} ${PROJECT_SOURCE_DIR}/cmake/embed_presets.cmake
  COMMENT "Embedding presets")
target_sources(kvsim_models_objects PRIVATE ${generated})
